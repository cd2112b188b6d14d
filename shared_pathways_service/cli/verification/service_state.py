"""Observes a service from outside: its slices, and leftovers of connections."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.agent.journal import journal_entries
from shared_pathways_service.api.checks import Check
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import CleanupError, ServiceNotFound
from shared_pathways_service.operations.service_readers.base import ServiceReader
from shared_pathways_service.operations.service_readers.machine_checks import machine_checks
from shared_pathways_service.runtime.settings import Settings

__all__ = ["ServiceView", "count_slices"]

#: Seconds between two polls of the service.
_POLL_S = 0.2


@dataclasses.dataclass(frozen=True)
class ServiceView:
    """The service at a place."""

    place: Place
    settings: Settings

    @functools.cached_property
    def reader(self) -> ServiceReader:
        """The reader of the service."""
        return reader_of(self.place, self.settings)

    def checks(self, request: SessionRequest, timeout_s: float) -> list[Check]:
        """Runs the checks of `sps doctor`."""
        return machine_checks(self.settings) + self.reader.checks(request, timeout_s)

    def slices(self) -> dict[str, tuple[int, int]]:
        """Returns the usable and the free slices by instance type."""
        try:
            status = self._status()
        except ServiceNotFound:
            if not self.reader.starts_on_demand:
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
        return left + self.reader.left_behind(names)

    def _status(self) -> dict[str, Any]:
        return self.reader.status()


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
