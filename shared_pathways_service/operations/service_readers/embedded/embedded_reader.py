"""Reads the embedded service of this user."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator
from typing import Any

from shared_pathways_service.agent.journal import journal_entries
from shared_pathways_service.api.checks import Check
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.operations.service_readers.base import LogRequest, ShowLine
from shared_pathways_service.operations.service_readers.embedded.embedded_checks import (
    embedded_checks,
)
from shared_pathways_service.operations.service_readers.embedded.embedded_link import embedded_link
from shared_pathways_service.operations.service_readers.embedded.embedded_status import (
    read_status,
    read_status_and_counters,
)
from shared_pathways_service.operations.service_readers.embedded.log_files import find_logs
from shared_pathways_service.operations.service_readers.embedded.status_counters import (
    read_counters,
)
from shared_pathways_service.operations.service_readers.executor_logs import ExecutorLines
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.shown_counters import Counters
from shared_pathways_service.runtime.embedded.log_reading import read_logs
from shared_pathways_service.runtime.settings import Settings

__all__ = ["EmbeddedReader"]


class EmbeddedReader:
    """The embedded service of this user, as a `ServiceReader`."""

    has_counters = True
    starts_on_demand = True
    has_tunnel = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def checks(
        self, request: SessionRequest, timeout_s: float, proxy_job_name: str | None = None
    ) -> list[Check]:
        """Checks the service, if it runs."""
        if proxy_job_name is not None:
            raise InvalidRequestError(
                "--proxy-job-name",
                proxy_job_name,
                "a proxy in a cluster, with --context or --cluster",
            )
        return asyncio.run(embedded_checks(self._settings, request.tenant.type_names, timeout_s))

    def status(self, name: str | None = None, *, wait_s: float = 0.0) -> dict[str, Any]:
        """Returns the output of ``sps status --json``."""
        return read_status_and_counters(self._settings, name, wait_s=wait_s)

    def counters(self, name: str | None) -> Counters:
        """Returns the counters of the proxies that serve."""
        return asyncio.run(read_counters(self._settings, name))

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        """Connects to the resource manager."""
        async with embedded_link(self._settings) as link:
            yield Manager(
                stub=link.resource_manager,
                metadata=link.metadata,
                address=link.state.address,
                version=link.state.version,
            )

    @contextlib.asynccontextmanager
    async def proxies(self) -> AsyncIterator[_OnlyInJournal]:
        """Gives access to no proxies: the journal has them all."""
        yield _OnlyInJournal(self._settings)

    def left_behind(self, names: set[str]) -> list[str]:
        """Returns tenants and processes of connections."""
        try:
            status = read_status(self._settings)
        except ServiceNotFound:
            # A service that connect() started may end with its last tenant.
            return []
        processes = [one for one in status["processes"] if one["name"] in names]
        return [
            *(f"tenant {one['name']}" for one in status["tenants"] if one["name"] in names),
            *(f"queue entry {one['tenant']}" for one in status["queue"] if one["tenant"] in names),
            *(f"process {one['pid']} of {one['name']}" for one in processes),
        ]

    def show_logs(self, wanted: LogRequest, show: ShowLine) -> None:
        """Shows log files."""
        if wanted.component != "executor":
            found = find_logs(self._settings, wanted.name, wanted.component)
            read_logs(found, wanted.lines, show, follow=wanted.follow)
            return
        lines = ExecutorLines(wanted)
        lines.check_status(functools.partial(read_status, self._settings))
        found = find_logs(self._settings, wanted.name, wanted.component, lines.select)
        read_logs(found, wanted.lines, show, follow=wanted.follow)
        lines.check_found()


class _OnlyInJournal:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def server_time(self) -> float:
        return time.time()

    async def proxies(self, _user: str = "") -> list[KnownProxy]:
        return []

    async def proxy(self, name: str) -> KnownProxy:
        names = sorted(entry.name for entry in journal_entries(self._settings))
        raise ServiceNotFound(
            f"you have no connection {name} on this machine",
            candidates=names,
            hint=f"your connections are {', '.join(names)}"
            if names
            else "--cluster or --context selects a cluster",
        )

    async def delete(self, _proxy: KnownProxy) -> bool:
        return False
