"""What is known of one connection, beyond the service's state: for its page.

Each part is read alone and may be refused alone: of another user's connection the page shows what
the service and the cluster show to this user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import aiohttp
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.api.request_fields import check_proxy_job_name
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady, SharedPathwaysError
from shared_pathways_service.events import rfc3339
from shared_pathways_service.operations.service_readers.base import LogRequest, Proxies, ShowLine
from shared_pathways_service.operations.service_readers.shown_counters import Counters, fields_of
from shared_pathways_service.patience import timeouts

__all__ = ["LOG_LINES", "ConnectionDetails", "ConnectionService", "OwnEntry", "no_own_entry"]

#: The last lines of the proxy's log that the page shows.
LOG_LINES: Final = 200
_LINK: Final = ("sps_agent_link_", "sps_agent_tunnel_")

#: Returns this user's connection of a name while its agent lives on this machine.
OwnEntry = Callable[[str], Entry | None]


class ConnectionService(Protocol):
    """What the page of a connection needs of a `ServiceReader`."""

    has_counters: bool

    def counters(self, name: str | None) -> Counters:
        """Returns the proxies' counters."""

    def proxies(self) -> AbstractAsyncContextManager[Proxies]:
        """Gives access to proxies for the length of the block."""

    def show_logs(self, wanted: LogRequest, show: ShowLine) -> None:
        """Shows logs, until they end or, if they are followed, their writers do."""


def no_own_entry(_name: str) -> None:
    """Finds no connection on this machine."""


class ConnectionDetails:
    """Reads the parts of a connection that the service's state does not have.

    Args:
      service: The service.
      own: Finds this user's connections on this machine.
    """

    def __init__(self, service: ConnectionService, own: OwnEntry) -> None:
        self._service = service
        self._own = own

    async def read(self, name: str) -> dict[str, Any]:
        """Returns what is known of a connection beyond the state of the service.

        Returns:
          ``own``: what this machine's journal has; null: the connection is another user's, of
          another machine, or has ended. ``proxy``, ``counters`` and ``agent``: parts with a
          ``value``, which is null if there is none, and the ``error`` and ``hint`` of a part that
          could not be read.

        Raises:
          InvalidRequestError: No connection can have this name.
        """
        check_proxy_job_name(name, field="name")
        entry = await asyncio.to_thread(self._own, name)
        proxy, counters, agent = await asyncio.gather(
            _part(_proxy(self._service, name)),
            _part(_counters(self._service, name)),
            _part(_agent(entry)),
        )
        return {
            "name": name,
            "own": None if entry is None else _own_fields(entry),
            "proxy": proxy,
            "counters": counters,
            "agent": agent,
        }

    async def log(self, name: str) -> dict[str, Any]:
        """Returns the last lines of a proxy's log.

        Raises:
          InvalidRequestError: No connection can have this name.
          SharedPathwaysError: There is no such log, or this user may not read it.
        """
        check_proxy_job_name(name, field="name")
        lines: list[str] = []
        wanted = LogRequest(name=name, component="proxy", lines=LOG_LINES, follow=False)
        await asyncio.to_thread(self._service.show_logs, wanted, lambda _, line: lines.append(line))
        return {"lines": lines[-LOG_LINES:]}


async def _part(reading: Awaitable[object]) -> dict[str, Any]:
    try:
        return {"value": await reading, "error": None, "hint": None}
    except SharedPathwaysError as error:
        return {"value": None, "error": error.message, "hint": error.hint or None}


def _own_fields(entry: Entry) -> dict[str, Any]:
    return {
        "state": entry.state,
        "since": entry.since,
        "host": entry.host or None,
        "pid": entry.owner.pid,
        "agent_pid": entry.agent.pid,
        "metrics": entry.metrics or None,
        "link": None if entry.link is None else entry.link.as_fields(),
    }


async def _proxy(service: ConnectionService, name: str) -> dict[str, Any] | None:
    """Reads the proxy's Job; None: the home has none, or it is gone."""
    async with service.proxies() as proxies:
        try:
            return _job(await proxies.proxy(name))
        except ServiceNotFound:
            return None


def _job(proxy: KnownProxy) -> dict[str, Any]:
    return {
        "namespace": proxy.namespace,
        "state": proxy.state,
        "since": proxy.since or None,
        "host": proxy.holder.host or None,
        "pid": proxy.pid or None,
        "keep_for_s": proxy.keep_for_s,
        "ends": None if proxy.ends_at is None else rfc3339(proxy.ends_at),
    }


async def _counters(service: ConnectionService, name: str) -> dict[str, Any] | None:
    """Reads the proxy's limits and counters; None: they are not collected, or it is gone."""
    if not service.has_counters:
        return None
    data = fields_of(await asyncio.to_thread(service.counters, name))
    found = next((proxy for proxy in data["proxies"] if proxy["name"] == name), None)
    return None if found is None else {**found, "late_callbacks": data["late_callbacks"]}


async def _agent(entry: Entry | None) -> dict[str, float] | None:
    """Reads the counters of the link and the tunnel; None: the agent serves no metrics."""
    if entry is None or not entry.metrics:
        return None
    try:
        timeout = aiohttp.ClientTimeout(total=timeouts.PAGE_AGENT.s)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as client,
            client.get(entry.metrics) as response,
        ):
            text = await response.text()
        families = list(text_string_to_metric_families(text))
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ServiceNotReady(
            f"the agent's metrics at {entry.metrics} cannot be read: {error}"
        ) from error
    return {
        sample.name: sample.value
        for family in families
        if family.name.startswith(_LINK)
        for sample in family.samples
    }
