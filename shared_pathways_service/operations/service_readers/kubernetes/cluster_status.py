"""Reads the status of a service in a cluster, for `sps status`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.cluster_state.overview import occupancy, processes
from shared_pathways_service.cluster_state.readiness import ServiceReadiness, read_readiness
from shared_pathways_service.cluster_state.services import Service, find_service
from shared_pathways_service.errors import ServiceNotReady, SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import (
    ServiceWaiting,
)
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.manifests import names
from shared_pathways_service.operations.cluster_access import Cluster, Object
from shared_pathways_service.operations.manager_link import link_to_manager
from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened
from shared_pathways_service.operations.service_readers.kubernetes.reported_counters import (
    reported_counters,
)
from shared_pathways_service.operations.service_readers.service_occupancy import occupancy_of, only
from shared_pathways_service.operations.service_readers.shown_counters import (
    Counters,
    fields_of,
)
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb
from shared_pathways_service.rmclient.failures import translate
from shared_pathways_service.runtime.settings import Settings

__all__ = ["read_cluster_status"]


async def read_cluster_status(
    where: ServiceChoice,
    settings: Settings,
    name: str | None,
    *,
    wait_s: float,
    warn: Callable[[str], object],
) -> dict[str, Any]:
    """Returns the output of ``sps status --json`` for a service in a cluster.

    With our images the status is the resource manager's. Google's resource manager reports none, so
    with its images pods and labels are the only source.

    Args:
      where: The cluster and the service.
      settings: For the connection to the resource manager.
      name: A connection; None: all of them.
      wait_s: Seconds to wait for all slices to be ready; 0: do not wait.
      warn: Called with the reason if the resource manager could not be asked.

    Raises:
      ServiceNotFound: There is no service, or no connection of that name.
      ServiceNotReady: Not all slices were ready in time.
    """
    async with opened(where) as cluster:
        if wait_s:
            await _wait_until_ready(cluster, where.pathways_service or "", wait_s)
        return await _read(cluster, where, settings, name, warn)


async def _read(
    cluster: Cluster,
    where: ServiceChoice,
    settings: Settings,
    name: str | None,
    warn: Callable[[str], object],
) -> dict[str, Any]:
    jobsets, servers, clients, proxies = await asyncio.gather(
        cluster.items("jobsets"),
        cluster.items("pods", names.LABEL_JOBSET),
        cluster.items("pods", names.PROXY_SELECTOR),
        cluster.proxies(),
    )
    service = find_service(jobsets, where.pathways_service or "", namespace=where.namespace)
    found = read_readiness(service, servers, now=cluster.api.server_time)
    mine = [proxy for proxy in proxies if proxy.holder.service in ("", service.name)]
    data = {
        "service": {
            "address": service.address,
            "version": service.image,
            "home": "kubernetes",
            "since": _since(jobsets, service),
            "spares": None,  # known to the resource manager only
        },
        "processes": processes(found, [*servers, *clients], mine),
        **occupancy(found, mine),
    }
    counted: dict[str, Any] = {}
    if service.is_ours and found.head_ready:
        try:
            status, counters = await _read_manager(cluster, found, settings, name)
            data |= occupancy_of(status)
            data["service"]["spares"] = status.spares
            counted = fields_of(counters)
        except SharedPathwaysError as error:
            warn(f"{error}; the following is derived from pods and labels")
    known = {proxy.name for proxy in mine}
    return (data if name is None else only(data, name, known)) | counted


async def _read_manager(
    cluster: Cluster, found: ServiceReadiness, settings: Settings, name: str | None
) -> tuple[rm_pb.GetStatusResponse, Counters]:
    async with link_to_manager(cluster, found.service, settings, found=found) as link:
        try:
            status = await link.status()
            try:
                async with link.unless_refused():
                    return status, await reported_counters(link.stub, name)
            except grpc.aio.AioRpcError as error:
                # An earlier release does not collect them.
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                return status, {}
        except grpc.aio.AioRpcError as error:
            who = f"the resource manager of {found.service.name}"
            raise translate(error, found.service.address, service=who) from error


async def _wait_until_ready(cluster: Cluster, address: str, wait_s: float) -> None:
    last = ServiceWaiting(reason="it did not answer")

    def on_event(news: Event) -> None:
        nonlocal last
        if isinstance(news, ServiceWaiting):
            last = news

    try:
        async with asyncio.timeout(wait_s):
            await Preflight(cluster.api, cluster.namespace, address).wait_until_complete(on_event)
    except TimeoutError as error:
        raise ServiceNotReady(
            f"the service was not ready within {wait_s:g} s: {last.reason}",
            pods=str(last.data.get("pods") or "").splitlines(),
        ) from error


def _since(jobsets: list[Object], service: Service) -> str | None:
    for jobset in jobsets:
        if jobset["metadata"]["uid"] == service.uid:
            return str(jobset["metadata"]["creationTimestamp"])
    return None
