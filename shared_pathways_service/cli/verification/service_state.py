"""The service as a verification sees it from outside: its slices, and what connections left."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from typing import Any

from shared_pathways_service.api.checks import Check
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cli.lookups.embedded_status import read_status
from shared_pathways_service.cli.lookups.local_checks import embedded_checks, machine_checks
from shared_pathways_service.cli.lookups.sessions import journal_entries
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import CleanupError, ServiceNotFound
from shared_pathways_service.runtime.settings import Settings

__all__ = ["ServiceView"]

#: Seconds between two looks at the service.
_LOOK_S = 0.2


@dataclasses.dataclass(frozen=True)
class ServiceView:
    """The service at a place."""

    place: Place
    settings: Settings

    def checks(self, request: SessionRequest, timeout_s: float) -> list[Check]:
        """Makes the checks of `sps doctor`."""
        checks = machine_checks(self.settings)
        if self.place.is_cluster:
            from shared_pathways_service.cli.lookups.cluster_checks import cluster_checks  # noqa: PLC0415 - aiohttp

            return checks + asyncio.run(cluster_checks(self.place, request, timeout_s))
        wanted = request.tenant.type_names
        return checks + asyncio.run(embedded_checks(self.settings, wanted, timeout_s))

    def slices(self) -> dict[str, tuple[int, int]]:
        """Returns, by instance type, how many slices a request can have at most, and has now.

        Slices that the service keeps as spares are in neither number; slices that are lost, or not
        ready yet, are in the first only.
        """
        try:
            told = self._status()
        except ServiceNotFound:
            if self.place.is_cluster:
                raise
            return {}
        total = Counter(item["instance_type"] for item in told["slices"])
        held = Counter(
            item["instance_type"] for tenant in told["tenants"] for item in tenant["slices"]
        )
        unheld = [item for item in told["slices"] if not item["tenant"]]
        cordoned = Counter(i["instance_type"] for i in unheld if i["state"] == "cordoned")
        not_ready = Counter(i["instance_type"] for i in unheld if i["state"] != "ready")
        spares = told["service"]["spares"] or 0
        found = {}
        for kind, count in total.items():
            # A spare stands in for a cordoned slice, which is not granted either.
            usable = max(count - max(spares, cordoned[kind]), 0)
            kept = max(spares - cordoned[kind], 0)
            found[kind] = (usable, max(count - held[kind] - not_ready[kind] - kept, 0))
        return found

    def wait_until_gone(self, names: set[str], timeout_s: float) -> None:
        """Waits until nothing is left of connections.

        Args:
          names: Of the connections.
          timeout_s: Seconds.

        Raises:
          CleanupError: Something is left.
        """
        deadline = time.monotonic() + timeout_s
        while left := self._left(names):
            if time.monotonic() > deadline:
                raise CleanupError(
                    f"after {timeout_s:g} s this is left: {', '.join(left)}",
                    left=left,
                    command="sps reap",
                    hint="`sps list` shows your connections, `sps reap` takes down what is left",
                )
            time.sleep(_LOOK_S)

    def _left(self, names: set[str]) -> list[str]:
        journal = [f"journal entry {e.name}" for e in journal_entries(self.settings)]
        left = [entry for entry in journal if entry.removeprefix("journal entry ") in names]
        if self.place.is_cluster:
            return left + asyncio.run(self._left_in_cluster(names))
        try:
            told = self._status()
        except ServiceNotFound:
            # An embedded service that connect() started may end with its last tenant.
            return left
        left += [f"tenant {one['name']}" for one in told["tenants"] if one["name"] in names]
        left += [f"queue entry {one['tenant']}" for one in told["queue"] if one["tenant"] in names]
        processes = [one for one in told["processes"] if one["name"] in names]
        return left + [f"process {one['pid']} of {one['name']}" for one in processes]

    async def _left_in_cluster(self, names: set[str]) -> list[str]:
        from shared_pathways_service.cli.lookups.open_cluster import opened  # noqa: PLC0415 - aiohttp
        from shared_pathways_service.manifests.names import PROXY_SELECTOR  # noqa: PLC0415

        async with opened(self.place) as cluster:
            return [
                f"{resource} {name}"
                # (Tenants may not list Secrets; a proxy's goes with its Job, which owns it.)
                for resource in ("jobs", "pods")
                for found in await cluster.items(resource, PROXY_SELECTOR)
                if any((name := found["metadata"]["name"]).startswith(one) for one in names)
            ]

    def _status(self) -> dict[str, Any]:
        if not self.place.is_cluster:
            return read_status(self.settings)
        from shared_pathways_service.cli.lookups.cluster_status import read_cluster_status  # noqa: PLC0415 - aiohttp

        return asyncio.run(read_cluster_status(self.place, self.settings))
