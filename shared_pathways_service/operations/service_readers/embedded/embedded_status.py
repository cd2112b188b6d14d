"""Reads the status of the user's embedded service, for commands."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import grpc.aio

from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady
from shared_pathways_service.homes.embedded.discovery import ServiceLink
from shared_pathways_service.operations.service_readers.embedded.embedded_link import embedded_link
from shared_pathways_service.operations.service_readers.embedded.status_counters import (
    counters_of,
    limits_of,
)
from shared_pathways_service.operations.service_readers.service_occupancy import occupancy_of, only
from shared_pathways_service.operations.service_readers.shown_counters import fields_of
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb
from shared_pathways_service.protocol import supervisor_pb2 as sup_pb
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.rmclient.unary_calls import ManagerCalls
from shared_pathways_service.runtime.settings import Settings

__all__ = ["read_status", "read_status_and_counters"]

_Answer = TypeVar("_Answer")

#: Seconds between two polls while waiting.
_POLL_S = 0.1


def read_status(
    settings: Settings, name: str | None = None, *, wait_s: float = 0.0
) -> dict[str, Any]:
    """Returns the output of ``sps status --json``, without the counters of proxies.

    Args:
      settings: The directories in which to look for the service.
      name: A connection; None: all of them.
      wait_s: Seconds to wait for a service with all slices ready; 0: do not wait.

    Raises:
      ServiceNotFound: There is no service, or no connection of that name.
      ServiceNotReady: The service does not answer, or not all slices were ready in time.
    """
    return _ready_status(settings, name, wait_s)[0]


def read_status_and_counters(
    settings: Settings, name: str | None = None, *, wait_s: float = 0.0
) -> dict[str, Any]:
    """As `read_status`, with the counters of the proxies that serve."""
    data, proxies = _ready_status(settings, name, wait_s)
    return data | fields_of(asyncio.run(counters_of(proxies, settings, name)))


def _ready_status(
    settings: Settings, name: str | None, wait_s: float
) -> tuple[dict[str, Any], Sequence[sup_pb.Proxy]]:
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ServiceNotFound, ServiceNotReady):
            data, missing, proxies = asyncio.run(_read(settings, name))
            if not missing and not _unready(data):
                return data, proxies
        time.sleep(_POLL_S)
    data, missing, proxies = asyncio.run(_read(settings, name))
    unready = [*_unready(data), *([f"{missing} that never started"] if missing else [])]
    if wait_s and unready:
        raise ServiceNotReady(
            f"slices were not ready within {wait_s:g} s: {', '.join(unready)}",
            ready=len(data["slices"]) - len(_unready(data)),
            wanted=len(data["slices"]) + missing,
            pods=unready,
        )
    return data, proxies


def _unready(data: Mapping[str, Any]) -> list[str]:
    return [item["id"] for item in data["slices"] if item["state"] != "ready"]


async def _read(
    settings: Settings, name: str | None
) -> tuple[dict[str, Any], int, Sequence[sup_pb.Proxy]]:
    """Returns the status, the number of slices that have not registered yet, and the proxies."""
    async with embedded_link(settings) as link:
        supervisor, manager = await _read_processes_and_manager(link)
    data = {
        "service": {
            "address": link.state.address,
            "version": link.state.version,
            "home": "embedded",
            "since": link.state.since,
            "proxy_limits": limits_of(supervisor.proxy_limits),
            "spares": manager.spares,
        },
        "processes": [_process(process) for process in supervisor.processes],
        **occupancy_of(manager),
    }
    # The resource manager learns of a slice from its first worker.
    planned = sum(count + link.state.spares for count in link.state.slices.values())
    missing = max(0, planned - len(manager.slices))
    if name is not None:
        data = only(data, name, {proxy.name for proxy in supervisor.proxies})
    return data, missing, supervisor.proxies


async def _read_processes_and_manager(
    link: ServiceLink,
) -> tuple[sup_pb.GetProcessesResponse, rm_pb.GetStatusResponse]:
    processes = link.supervisor.GetProcesses(
        sup_pb.GetProcessesRequest(),
        metadata=link.metadata,
        timeout=timeouts.MANAGER_CALL.s,
        wait_for_ready=True,
    )
    manager = ManagerCalls(stub=link.resource_manager, metadata=link.metadata)
    occupancy = manager.status(timeouts.MANAGER_CALL.s)
    return await asyncio.gather(
        _answer(processes, "the supervisor of the service", link),
        _answer(occupancy, "the resource manager of the service", link),
    )


async def _answer(call: Awaitable[_Answer], who: str, link: ServiceLink) -> _Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error, service=who, address=link.state.address) from error


def _process(process: sup_pb.GetProcessesResponse.Process) -> dict[str, Any]:
    return {
        "role": process.role,
        "name": process.name or None,
        "pid": process.pid,
        "port": process.port or None,
        "slice": process.slice or None,
        "restarts": process.restarts,
    }
