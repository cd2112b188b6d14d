"""A service in a cluster is created, waited for, and taken away."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from shared_pathways_service.cluster_state.readiness import Look, ServiceReadiness
from shared_pathways_service.cluster_state.services import Service, read_service
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotFound,
    ServiceNotReady,
)
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.priority_classes import priority_of
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_address, service_jobset
from shared_pathways_service.operations.cluster_access import Cluster, Object
from shared_pathways_service.operations.manager_link import link_to_manager
from shared_pathways_service.runtime.settings import Settings

__all__ = [
    "check_priority_class",
    "create",
    "delete",
    "exists",
    "jobset_of",
    "try_to_create",
    "wait_until_ready",
]

_NOT_FOUND = 404
_EXISTS = "AlreadyExists"
#: Seconds between two questions whether the resource manager has heard of all workers.
_PAUSE_S = 0.2


async def check_priority_class(cluster: Cluster, name: str) -> None:
    """Refuses a PriorityClass that the cluster does not have, whose pods would never be created."""
    if name:
        found = await cluster.api.get(collection("priorityclasses"))
        priority_of(name, found.get("items") or (), field="--priority-class")


async def create(cluster: Cluster, inputs: ServiceInputs) -> Object:
    """Creates a service's JobSet, once.

    Raises:
      InvalidRequestError: There is a JobSet of that name.
    """
    # By it a request whose answer was lost is known for ours.
    labels = {**inputs.labels, names.LABEL_SESSION: str(uuid.uuid4())}
    body = service_jobset(dataclasses.replace(inputs, labels=labels))
    try:
        return await cluster.api.create(collection("jobsets", cluster.namespace), body)
    except ApiError as error:
        if error.reason != _EXISTS:
            raise
        raise InvalidRequestError(
            "NAME",
            inputs.name,
            f"a name that no JobSet in namespace {cluster.namespace} has",
            message=f"there is a JobSet {inputs.name} in namespace {cluster.namespace} already",
            hint=f"`sps upgrade {inputs.name}` changes a service, `sps undeploy {inputs.name}` "
            "takes it away",
        ) from error


async def try_to_create(cluster: Cluster, inputs: ServiceInputs) -> Object:
    """Has the cluster check a JobSet, under a name that is free, and creates nothing.

    Returns:
      The JobSet as it would be, with what the cluster's webhooks fill in.
    """
    body = service_jobset(dataclasses.replace(inputs, name=f"try-{uuid.uuid4().hex[:12]}"))
    path = collection("jobsets", cluster.namespace)
    return await cluster.api.request("POST", path, body=body, params={"dryRun": "All"})


async def jobset_of(cluster: Cluster, name: str) -> tuple[Object, Service]:
    """Returns the JobSet of a service, and what it says.

    Raises:
      ServiceNotFound: There is none of that name, or it is no service.
    """
    where = f"in namespace {cluster.namespace} of {cluster.api.access.name or 'the cluster'}"
    try:
        jobset = await cluster.api.get(item("jobsets", cluster.namespace, name))
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        listed = map(read_service, await cluster.items("jobsets"))
        there = [service.name for service in listed if service is not None]
        raise ServiceNotFound(
            f"there is no service {name} {where}",
            service=name,
            candidates=there,
            hint=f"there are {', '.join(there)}" if there else "`sps deploy` makes one",
        ) from error
    service = read_service(jobset)
    if service is None:
        raise ServiceNotFound(
            f"the JobSet {name} {where} is no service: it has no resource manager"
        )
    return jobset, service


async def exists(cluster: Cluster, name: str) -> bool:
    """Whether there is a JobSet of that name."""
    return await cluster.api.find(item("jobsets", cluster.namespace, name)) is not None


async def wait_until_ready(
    cluster: Cluster, name: str, settings: Settings, *, timeout_s: float, look: Look
) -> ServiceReadiness:
    """Waits until all slices of a service are ready.

    An image of ours must have heard of all its workers; of others the pods' word is taken.

    Args:
      cluster: Where.
      name: The service's.
      settings: For the way to the resource manager.
      timeout_s: Seconds for all of it.
      look: Is shown how it stands, whenever that changes.

    Raises:
      ServiceNotReady: It is not in time, or cannot become so by itself.
    """
    preflight = Preflight(cluster.api, cluster.namespace, service_address(name))
    last = "its pods were not heard of"

    def hear(news: Event) -> None:
        nonlocal last
        last = news.reason or last
        if (view := preflight.view) is not None:
            look(view.readiness, view.pods)

    try:
        async with asyncio.timeout(timeout_s):
            found = await preflight.wait_until_complete(hear)
            if found.service.is_ours:
                last = "the resource manager has not heard of all workers"
                await _until_heard_of(cluster, found, settings)
    except TimeoutError as error:
        pods = () if preflight.view is None else preflight.view.readiness.troubles
        raise ServiceNotReady(
            f"the service {name} is not ready within {timeout_s:g} s: {last}",
            pods=pods,
            hint=f"it stays, and may become so: `sps status --wait 600` waits on, `sps undeploy "
            f"{name}` takes it away",
        ) from error
    if preflight.view is not None:
        look(found, preflight.view.pods)
    return found


async def _until_heard_of(cluster: Cluster, found: ServiceReadiness, settings: Settings) -> None:
    async with link_to_manager(cluster, found.service, settings, found=found) as link:
        while True:
            # (A head that is just starting again does not answer; the caller has a deadline.)
            with contextlib.suppress(grpc.aio.AioRpcError):
                status = await link.status()
                if sum(one.state == "ready" for one in status.slices) >= found.wanted:
                    return
            await asyncio.sleep(_PAUSE_S)


async def delete(cluster: Cluster, jobset: Object, *, timeout_s: float) -> None:
    """Deletes this very JobSet, and waits until its pods are gone.

    Raises:
      ServiceNotReady: Some are there still when the time is over.
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
            f"pods of {name} are left after {timeout_s:g} s: {', '.join(left.values())}",
            pods=list(left.values()),
            hint="a pod ends with its grace, or when its node is heard of again",
        ) from error


async def _pods(cluster: Cluster, selector: str) -> AsyncGenerator[dict[str, str], None]:
    """Yields the names of the pods that there are, by UID, whenever that changes."""
    there: dict[str, str] = {}
    path = collection("pods", cluster.namespace)
    changes = watch(cluster.api, path, params={"labelSelector": selector})
    async with contextlib.aclosing(changes):
        async for change in changes:
            if change.kind != "SYNCED":
                metadata: dict[str, Any] = change.object["metadata"]
                if change.kind == "DELETED":
                    there.pop(metadata["uid"], None)
                else:
                    there[metadata["uid"]] = metadata["name"]
                    continue
            yield there
