"""Translates an API server's refusal to create a proxy."""

from __future__ import annotations

from shared_pathways_service.cluster_state.proxy_progress import is_for_lack_of_quota
from shared_pathways_service.errors import InvalidRequestError, ProxyFailed, SharedPathwaysError
from shared_pathways_service.session.failures import no_room

__all__ = ["create_refused"]


def create_refused(name: str, namespace: str, *, reason: str, message: str) -> SharedPathwaysError:
    """Returns the error for a final answer.

    Args:
      name: The name of the proxy's Job.
      namespace: The Job's namespace.
      reason: Kubernetes' ``Status.reason``, e.g. ``AlreadyExists`` for another user's Job.
      message: The API server's message.
    """
    if reason == "AlreadyExists":
        return InvalidRequestError(
            "proxy_job_name",
            name,
            f"a name without a Job in namespace {namespace}",
            hint="without proxy_job_name= a name is generated",
        )
    if is_for_lack_of_quota(message):
        return no_room(name, message)
    return ProxyFailed(
        f"the proxy {name} is not admitted: {message}",
        hint="the API server's message names the field or the policy",
    )
