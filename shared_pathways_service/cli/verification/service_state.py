"""Observes a service from outside: its slices, and leftovers of connections."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.api.checks import Check
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cli.lookups.embedded_status import read_status
from shared_pathways_service.cli.lookups.local_checks import embedded_checks, machine_checks
from shared_pathways_service.cli.lookups.sessions import journal_entries
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import CleanupError, ServiceNotFound
from shared_pathways_service.runtime.settings import Settings

__all__ = ["ServiceView", "count_slices"]

#: Seconds between two polls of the service.
_POLL_S = 0.2


@dataclasses.dataclass(frozen=True)
class ServiceView:
    """The service at a place."""

    place: Place
    settings: Settings

    def checks(self, request: SessionRequest, timeout_s: float) -> list[Check]:
        """Runs the checks of `sps doctor`."""
        checks = machine_checks(self.settings)
        if self.place.is_cluster:
            from shared_pathways_service.cli.lookups.cluster_checks import cluster_checks  # noqa: PLC0415 - aiohttp

            return checks + asyncio.run(cluster_checks(self.place, request, timeout_s))
        wanted = request.tenant.type_names
        return checks + asyncio.run(embedded_checks(self.settings, wanted, timeout_s))

    def slices(self) -> dict[str, tuple[int, int]]:
        """Returns the usable and the free slices by instance type."""
        try:
            status = self._status()
        except ServiceNotFound:
            if self.place.is_cluster:
                raise
            return {}
        return count_slices(status)

    def wait_until_gone(self, names: set[str], timeout_s: float) -> None:
        """Waits until nothing is left of connections.

        Args:
          names: The connections' names.
          timeout_s: Seconds to wait.

        Raises:
          CleanupError: Something is left.
        """
        deadline = time.monotonic() + timeout_s
        while left := self._left(names):
            if time.monotonic() > deadline:
                raise CleanupError(
                    f"these are still left after {timeout_s:g} s: {', '.join(left)}",
                    left=left,
                    command="sps reap",
                    hint="`sps list` shows your connections, `sps reap` deletes leftovers",
                )
            time.sleep(_POLL_S)

    def _left(self, names: set[str]) -> list[str]:
        journal = [f"journal entry {e.name}" for e in journal_entries(self.settings)]
        left = [entry for entry in journal if entry.removeprefix("journal entry ") in names]
        if self.place.is_cluster:
            return left + asyncio.run(self._left_in_cluster(names))
        try:
            status = self._status()
        except ServiceNotFound:
            # An embedded service that connect() started may end with its last tenant.
            return left
        left += [f"tenant {one['name']}" for one in status["tenants"] if one["name"] in names]
        left += [
            f"queue entry {one['tenant']}" for one in status["queue"] if one["tenant"] in names
        ]
        processes = [one for one in status["processes"] if one["name"] in names]
        return left + [f"process {one['pid']} of {one['name']}" for one in processes]

    async def _left_in_cluster(self, names: set[str]) -> list[str]:
        from shared_pathways_service.cli.lookups.open_cluster import opened  # noqa: PLC0415 - aiohttp
        from shared_pathways_service.manifests.names import PROXY_SELECTOR  # noqa: PLC0415

        async with opened(self.place) as cluster:
            return [
                f"{resource} {name}"
                # (Tenants may not list Secrets; a proxy's Secret is owned by its Job.)
                for resource in ("jobs", "pods")
                for found in await cluster.items(resource, PROXY_SELECTOR)
                if any((name := found["metadata"]["name"]).startswith(one) for one in names)
            ]

    def _status(self) -> dict[str, Any]:
        if not self.place.is_cluster:
            return read_status(self.settings)
        from shared_pathways_service.cli.lookups.cluster_status import read_cluster_status  # noqa: PLC0415 - aiohttp

        return asyncio.run(read_cluster_status(self.place, self.settings))


def count_slices(status: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Returns the usable and the free slices by instance type, from a status.

    Spares are in neither number. Slices that are lost or not ready yet count as usable, but not as
    free.
    """
    total = Counter(item["instance_type"] for item in status["slices"])
    held = Counter(
        item["instance_type"] for tenant in status["tenants"] for item in tenant["slices"]
    )
    unheld = [item for item in status["slices"] if not item["tenant"]]
    cordoned = Counter(i["instance_type"] for i in unheld if i["state"] == "cordoned")
    not_ready = Counter(i["instance_type"] for i in unheld if i["state"] != "ready")
    spares = status["service"]["spares"] or 0
    found = {}
    for kind, count in total.items():
        # A cordoned slice counts as one of the spares.
        usable = max(count - max(spares, cordoned[kind]), 0)
        reserved = max(spares - cordoned[kind], 0)
        found[kind] = (usable, max(count - held[kind] - not_ready[kind] - reserved, 0))
    return found
