"""Checks whether a connection with Google's proxy can be resumable in this cluster."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from shared_pathways_service.api.checks import Check, Outcome
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.constants import NOT_RESUMABLE
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.homes.kubernetes.job_inputs import proxy_job_inputs
from shared_pathways_service.homes.kubernetes.permissions_review import missing_permissions
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.manifests.permissions import needed_for_sidecar, permissions
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import proxy_job

__all__ = ["check_link"]

Object = Mapping[str, Any]

_NAME: Final = "link"
#: The first version of Kubernetes that starts native sidecars everywhere.
_FIRST_VERSION: Final = (1, 29)
_FIX: Final = 'connect(link="plain") or --link=plain does not ask for it'


async def check_link(
    api: KubeApi,
    review: Object | BaseException,
    request: SessionRequest,
    service: Service,
    link: LinkInputs,
) -> list[Check]:
    """Checks what the sidecar of a resumable link needs; its absence is a warning.

    Args:
      api: The server.
      review: The answer to `review_rules`.
      request: The session's request.
      service: The service.
      link: The inputs of the sidecar.

    Returns:
      One check; none if no resumable link is requested.
    """
    if request.link == "plain":
        return []
    inputs = _inputs(request, service, link)
    if inputs.sidecar is None:
        return [Check(name=_NAME, outcome=Outcome.OK, found="resumable, by the proxy itself")]
    problem = (
        await _missing(api, service.namespace, review)
        or await _version_problem(api)
        or await _refusal(api, review, inputs)
    )
    if problem:
        found = f"{NOT_RESUMABLE}: {problem}"
        return [Check(name=_NAME, outcome=Outcome.WARNING, found=found, fix=_FIX)]
    found = f"resumable, by a sidecar of the image {link.image}"
    return [Check(name=_NAME, outcome=Outcome.OK, found=found)]


def _inputs(request: SessionRequest, service: Service, link: LinkInputs) -> ProxyJobInputs:
    """Returns the inputs of a Job like the session's, which is only tried."""
    return proxy_job_inputs(
        request,
        service,
        priority=0,
        namespace=service.namespace,
        session="",
        created_by_pid=0,
        ahead_s=link.keep_s,
        link=link,
    )


async def _missing(api: KubeApi, namespace: str, review: Object | BaseException) -> str:
    try:
        missing = await missing_permissions(api, namespace, review, needed_for_sidecar())
    except SharedPathwaysError:
        # (The creation will say so.)
        return ""
    return f"you may not {', '.join(map(str, missing))} in namespace {namespace}" if missing else ""


async def _version_problem(api: KubeApi) -> str:
    try:
        found = await api.get("/version")
    except SharedPathwaysError:
        return ""
    # (Some providers have a minor version like 29+.)
    numbers = [re.match(r"[0-9]+", str(found.get(part) or "")) for part in ("major", "minor")]
    version = tuple(int(number[0]) for number in numbers if number)
    if len(version) < len(_FIRST_VERSION) or version >= _FIRST_VERSION:
        return ""
    wanted = ".".join(map(str, _FIRST_VERSION))
    return f"it needs sidecars of Kubernetes {wanted}, and this is {found.get('gitVersion')}"


async def _refusal(api: KubeApi, review: Object | BaseException, inputs: ProxyJobInputs) -> str:
    """Returns why the cluster's policies refuse a pod with the sidecar, but not one without it.

    Most tenants may not create pods, as the controller of their Jobs does. For them the creation of
    the pod shows it.
    """
    try:
        creating = permissions("", "pods", "create")
        if await missing_permissions(api, inputs.namespace, review, creating):
            return ""
        refused = await _dry_run(api, inputs)
        if refused and not await _dry_run(api, dataclasses.replace(inputs, link=None)):
            return f"its sidecar is refused: {refused}"
    except SharedPathwaysError:
        return ""
    return ""


async def _dry_run(api: KubeApi, inputs: ProxyJobInputs) -> str:
    """Returns the API server's refusal of a proxy's pod; empty: none."""
    template = proxy_job(inputs)["spec"]["template"]
    name = f"{inputs.tenant.name}-{_NAME}"
    pod = {**template, "metadata": {**template["metadata"], "name": name}}
    path = collection("pods", inputs.namespace)
    try:
        await api.request("POST", path, body=pod, params={"dryRun": "All"})
    except ApiError as error:
        if error.is_final:
            return error.message
    return ""
