"""Creates and deletes services in a cluster, and waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from shared_pathways_service.cluster_state.readiness import Look, ServiceReadiness
from shared_pathways_service.cluster_state.service_reading import manifest_of
from shared_pathways_service.cluster_state.services import Service, read_service
from shared_pathways_service.errors import (
    InvalidRequestError,
    PreflightError,
    ServiceNotFound,
    ServiceNotReady,
)
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.priority_classes import priority_of
from shared_pathways_service.manifests.rbac import HEAD_ROLE, VERIFICATION
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import (
    record_spec,
    service_address,
    service_jobset,
)
from shared_pathways_service.manifests.verified_users.user_policies import POLICIES
from shared_pathways_service.operations.cluster_access import Cluster, Object
from shared_pathways_service.operations.manager_link import link_to_manager
from shared_pathways_service.runtime.settings import Settings

__all__ = [
    "check_priority_class",
    "check_verification",
    "create",
    "create_again",
    "delete",
    "exists",
    "jobset_of",
    "try_to_create",
    "wait_until_ready",
    "policy_paths",
    "with_verification",
]

#: Seconds between two polls of the resource manager's workers.
_PAUSE_S = 0.2
#: States of slices whose workers have registered; an earlier service's cordons are kept.
_REGISTERED = ("ready", "cordoned", "draining")


async def check_priority_class(cluster: Cluster, name: str) -> None:
    """Refuses a PriorityClass that does not exist, because its pods would never be created."""
    if name:
        found = await cluster.api.get(collection("priorityclasses"))
        priority_of(name, found.get("items") or (), field="--priority-class")


async def check_verification(cluster: Cluster) -> None:
    """Refuses to verify users if the cluster does not have what that needs.

    Raises:
      AccessDenied: The permission to find that out is missing.
      PreflightError: Something is missing; it is named.
    """
    paths = {f"RoleBinding {HEAD_ROLE}": item("rolebindings", cluster.namespace, HEAD_ROLE)}
    for name in POLICIES:
        paths |= policy_paths(name)
    found = await asyncio.gather(*map(cluster.api.find, paths.values()))
    if missing := [name for name, one in zip(paths, found, strict=True) if one is None]:
        # (Without this user's context: administrators have kubeconfigs of their own.)
        command = f"sps render {VERIFICATION} --namespace {cluster.namespace}"
        raise PreflightError(
            f"{cluster.place} has no {', no '.join(missing)}",
            hint=f"ask the cluster's administrator to run `{command} | kubectl apply -f -`",
        )


def policy_paths(name: str) -> dict[str, str]:
    """Returns the paths of an admission policy and of its binding, by their kind and name."""
    return {
        f"ValidatingAdmissionPolicy {name}": item("validatingadmissionpolicies", "", name),
        f"ValidatingAdmissionPolicyBinding {name}": item(
            "validatingadmissionpolicybindings", "", name
        ),
    }


async def with_verification(cluster: Cluster, inputs: ServiceInputs) -> tuple[ServiceInputs, str]:
    """Returns the inputs, with verified users if the cluster is prepared for it; else why not."""
    if not is_ours(inputs.image):
        return inputs, ""
    try:
        await check_verification(cluster)
    except PreflightError as error:
        return inputs, error.message
    return dataclasses.replace(inputs, verify_users=True), ""


async def create(cluster: Cluster, inputs: ServiceInputs) -> Object:
    """Creates a service's JobSet, once.

    Raises:
      InvalidRequestError: A JobSet of that name exists already.
    """
    return await _create(cluster, _manifest(inputs))


async def create_again(cluster: Cluster, jobset: Object) -> Object:
    """Creates a JobSet that was deleted again, as it was, whichever release rendered it.

    Raises:
      InvalidRequestError: A JobSet of that name exists already.
    """
    body = manifest_of(jobset)
    body["metadata"]["labels"] |= _session_label()
    return await _create(cluster, body)


async def try_to_create(
    cluster: Cluster, inputs: ServiceInputs, spec: Object | None = None
) -> Object:
    """Validates a JobSet in the cluster, under a free name, without creating it.

    Args:
      cluster: The cluster.
      inputs: The service's inputs.
      spec: The spec of its JobSet; None: the one that this release makes of the inputs.

    Returns:
      The JobSet, with the defaults of the cluster's webhooks.
    """
    body = _manifest(inputs, spec)
    # (The name of the claim in its spec remains.)
    body["metadata"]["name"] = f"try-{uuid.uuid4().hex[:12]}"
    path = collection("jobsets", cluster.namespace)
    return await cluster.api.request("POST", path, body=body, params={"dryRun": "All"})


def _manifest(inputs: ServiceInputs, spec: Object | None = None) -> dict[str, Any]:
    """Returns the JobSet as it is sent to the cluster."""
    labels = {**inputs.labels, **_session_label()}
    body = service_jobset(dataclasses.replace(inputs, labels=labels))
    if spec is not None:
        body["spec"] = spec
    record_spec(body)
    return body


def _session_label() -> dict[str, str]:
    """Returns a unique label, which identifies our JobSet if the answer to a request was lost."""
    return {names.LABEL_SESSION: str(uuid.uuid4())}


async def _create(cluster: Cluster, body: Object) -> Object:
    try:
        return await cluster.api.create(collection("jobsets", cluster.namespace), body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        name = str(body["metadata"]["name"])
        raise InvalidRequestError(
            "NAME",
            name,
            f"a name without a JobSet in namespace {cluster.namespace}",
            message=f"a JobSet {name} already exists in namespace {cluster.namespace}",
            hint=f"`{cluster.sps('upgrade', name)}` changes a service, "
            f"`{cluster.sps('undeploy', name)}` deletes it",
        ) from error


async def jobset_of(cluster: Cluster, name: str) -> tuple[Object, Service]:
    """Returns the JobSet of a service, and the service that it describes.

    Raises:
      ServiceNotFound: There is no JobSet of that name, or it is not a service.
    """
    jobset = await cluster.api.find(item("jobsets", cluster.namespace, name))
    if jobset is None:
        listed = map(read_service, await cluster.items("jobsets"))
        existing = [service.name for service in listed if service is not None]
        deploying = f"`{cluster.sps('deploy', name)}` creates it"
        hint = f"the services are {', '.join(existing)}" if existing else deploying
        raise ServiceNotFound(
            f"there is no service {name} in {cluster.place}",
            service=name,
            candidates=existing,
            hint=hint,
        )
    service = read_service(jobset)
    if service is None:
        raise ServiceNotFound(
            f"the JobSet {name} in {cluster.place} is not a service: it has no resource manager"
        )
    return jobset, service


async def exists(cluster: Cluster, name: str) -> bool:
    """Whether a JobSet of that name exists."""
    return await cluster.api.find(item("jobsets", cluster.namespace, name)) is not None


async def wait_until_ready(
    cluster: Cluster, name: str, settings: Settings, *, timeout_s: float, look: Look
) -> ServiceReadiness:
    """Waits until all slices of a service are ready; calls `look` whenever the readiness changes.

    With our images, all workers must have registered with the resource manager; with others, ready
    pods are enough.

    Raises:
      ServiceNotReady: The service is not ready in time, or cannot become ready by itself.
    """
    preflight = Preflight(cluster.api, cluster.namespace, service_address(name))
    last = "its pods have not been seen"

    def on_event(news: Event) -> None:
        nonlocal last
        last = news.reason or last
        if (view := preflight.view) is not None:
            look(view.readiness, view.pods)

    try:
        async with asyncio.timeout(timeout_s):
            found = await preflight.wait_until_complete(on_event)
            if found.service.is_ours:
                last = "not all workers have registered with the resource manager"
                await _wait_for_workers(cluster, found, settings)
    except TimeoutError as error:
        waiting = cluster.sps("status", "--wait=600", service=service_address(name))
        raise ServiceNotReady(
            f"the service {name} was not ready within {timeout_s:g} s: {last}",
            pods=() if preflight.view is None else preflight.view.readiness.troubles,
            hint=f"it remains, and may become ready: `{waiting}` waits longer, "
            f"`{cluster.sps('undeploy', name)}` deletes it",
        ) from error
    if preflight.view is not None:
        look(found, preflight.view.pods)
    return found


async def _wait_for_workers(cluster: Cluster, found: ServiceReadiness, settings: Settings) -> None:
    async with link_to_manager(cluster, found.service, settings, found=found) as link:
        while True:
            # (A head that is restarting does not answer; the caller has a deadline.)
            with contextlib.suppress(grpc.aio.AioRpcError):
                status = await link.status()
                if sum(one.state in _REGISTERED for one in status.slices) >= found.wanted:
                    return
            await asyncio.sleep(_PAUSE_S)


async def delete(cluster: Cluster, jobset: Object, *, timeout_s: float) -> None:
    """Deletes this JobSet, and waits until its pods have ended.

    Raises:
      ServiceNotReady: Some pods still exist after the timeout.
    """
    metadata = jobset["metadata"]
    name, uid = str(metadata["name"]), str(metadata["uid"])
    left: dict[str, str] = {}
    try:
        async with asyncio.timeout(timeout_s):
            await cluster.api.delete(item("jobsets", cluster.namespace, name), uid=uid)
            async with contextlib.aclosing(_pods(cluster, f"{names.LABEL_JOBSET}={name}")) as looks:
                async for left in looks:
                    if not left:
                        return
    except TimeoutError as error:
        raise ServiceNotReady(
            f"pods of {name} still exist after {timeout_s:g} s: {', '.join(left.values())}",
            pods=list(left.values()),
            hint="a pod ends after its grace period, or when its node is reachable again",
        ) from error


async def _pods(cluster: Cluster, selector: str) -> AsyncGenerator[dict[str, str], None]:
    """Yields the names of existing pods by UID, whenever they change."""
    existing: dict[str, str] = {}
    path = collection("pods", cluster.namespace)
    changes = watch(cluster.api, path, params={"labelSelector": selector})
    async with contextlib.aclosing(changes):
        async for change in changes:
            if change.kind != "SYNCED":
                metadata: dict[str, Any] = change.object["metadata"]
                if change.kind == "DELETED":
                    existing.pop(metadata["uid"], None)
                else:
                    existing[metadata["uid"]] = metadata["name"]
                    continue
            yield existing
