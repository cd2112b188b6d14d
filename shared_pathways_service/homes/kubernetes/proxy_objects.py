"""The objects of one proxy in a cluster: its Job, and what its pod mounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared_pathways_service.cluster_state.proxy_progress import create_refused
from shared_pathways_service.errors import ProxyFailed, SharedPathwaysError
from shared_pathways_service.homes.kubernetes.link_archive import link_archive
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests.names import bears_session
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import link_config_map, proxy_job, token_secret

__all__ = ["create_job", "create_mounted", "find_own_job"]


async def create_job(api: KubeApi, inputs: ProxyJobInputs) -> Mapping[str, Any]:
    """Creates the Job of a proxy, and returns the created object.

    Raises:
      SharedPathwaysError: The request was refused or not answered.
    """
    try:
        return await api.create(collection("jobs", inputs.namespace), proxy_job(inputs))
    except ApiError as error:
        raise _refusal(error, inputs) from error


async def create_mounted(
    api: KubeApi, inputs: ProxyJobInputs, token: str, uid: str, *, tried: set[tuple[str, str]]
) -> None:
    """Creates what the pod of a proxy mounts: a Secret with its token, the program of its link.

    Args:
      api: The API server.
      inputs: The inputs of the Job.
      token: The proxy's token.
      uid: The UID of the Job, which owns them.
      tried: The Jobs' UIDs and kinds of the objects that the caller tried to create before; this
        adds to them. If such an object exists, it is the caller's own.

    Raises:
      SharedPathwaysError: The request was refused or not answered.
    """
    if inputs.has_secret:
        await _create(api, "secrets", token_secret(inputs, token, uid), inputs, tried)
    if inputs.sidecar is not None:
        config_map = link_config_map(inputs, link_archive(), uid)
        await _create(api, "configmaps", config_map, inputs, tried)


async def find_own_job(api: KubeApi, namespace: str, name: str, session: str) -> str:
    """Returns the UID of a session's Job; empty if there is no Job of that name."""
    job = await api.find(item("jobs", namespace, name))
    return str(job["metadata"]["uid"]) if job and bears_session(job, session) else ""


async def _create(
    api: KubeApi,
    resource: str,
    body: Mapping[str, Any],
    inputs: ProxyJobInputs,
    tried: set[tuple[str, str]],
) -> None:
    [owner] = body["metadata"]["ownerReferences"]
    may_exist = (owner["uid"], body["kind"]) in tried
    tried.add((owner["uid"], body["kind"]))
    try:
        await api.create(collection(resource, inputs.namespace), body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise _refusal(error, inputs) from error
        # (The answer to an earlier try may have been lost.)
        if not (may_exist or error.may_have_succeeded):
            raise _is_taken(body, inputs) from error


def _is_taken(body: Mapping[str, Any], inputs: ProxyJobInputs) -> ProxyFailed:
    what = f"{body['kind']} {inputs.mounted_name} in namespace {inputs.namespace}"
    return ProxyFailed(
        f"the proxy {inputs.tenant.name} cannot start: the {what} exists already, and is not its "
        "own",
        hint="connect again: each session gives them another name",
    )


def _refusal(error: ApiError, inputs: ProxyJobInputs) -> SharedPathwaysError:
    if not error.is_final:
        return error
    return create_refused(
        inputs.tenant.name, inputs.namespace, reason=error.reason, message=error.message
    )
