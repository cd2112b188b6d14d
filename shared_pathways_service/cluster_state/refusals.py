"""What it means for a session when an API server does not create its proxy."""

from __future__ import annotations

from shared_pathways_service.cluster_state.proxy_progress import is_for_lack_of_quota
from shared_pathways_service.errors import InvalidRequestError, ProxyFailed, SharedPathwaysError
from shared_pathways_service.session.failures import no_room

__all__ = ["create_refused"]


def create_refused(name: str, namespace: str, *, reason: str, message: str) -> SharedPathwaysError:
    """Returns the error for an answer that is final.

    Args:
      name: Of the proxy's Job.
      namespace: Where it was to be.
      reason: Kubernetes' ``Status.reason``, e.g. ``AlreadyExists`` for somebody else's Job.
      message: What the API server said.
    """
    if reason == "AlreadyExists":
        return InvalidRequestError(
            "proxy_job_name",
            name,
            f"a name that no Job in namespace {namespace} has",
            hint="without proxy_job_name= a name is made up",
        )
    if is_for_lack_of_quota(message):
        return no_room(name, message)
    return ProxyFailed(
        f"the proxy {name} is not admitted: {message}",
        hint="what the API server says names the field, or the policy, that is in the way",
    )
