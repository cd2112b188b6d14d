"""Writes a connection's progress to Python's `logging`, as ``shared_pathways_service``.

The lines about the proxy, the link to Cloud Logging and the placement have upstream's wording
(pathwaysutils 0.1.13), because programs and people look for them.
"""

from __future__ import annotations

import logging
import time

from shared_pathways_service.session.messages import Phase, Snapshot

__all__ = ["LogLines"]

_log = logging.getLogger("shared_pathways_service.isc_pathways")


class LogLines:
    """Writes lines for changes of a session."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._seen = Snapshot(name="", phase=Phase.NEW)
        self._placed = 0

    def update(self, snapshot: Snapshot) -> None:
        """Processes the session's present state."""
        before, self._seen = self._seen, snapshot
        if snapshot.phase is not before.phase:
            self._report_phase(snapshot)
        if snapshot.uid and not before.uid:
            _log.info("Successfully deployed Pathways proxy.")
        if snapshot.log != before.log and snapshot.log.startswith("https://"):
            _log.info("View proxy logs in Cloud Logging: %s", snapshot.log)
        self._report_placement(snapshot)
        if snapshot.waits_for_link != before.waits_for_link:
            self._report_link(snapshot)

    def report_attached(self, cluster: str | None) -> None:
        """Reports that JAX of this process runs on the slices, of a GKE cluster or another one."""
        if cluster is not None:
            _log.info("Interactive supercomputing proxy client ready for cluster '%s'.", cluster)

    def _report_phase(self, snapshot: Snapshot) -> None:
        match snapshot.phase:
            case Phase.PREFLIGHT:
                _log.info("Validating Pathways service and TPU instances...")
            case Phase.CREATE:
                _log.info("Validation complete.")
                _log.info("Deploying Pathways proxy: %s", snapshot.name)
            case Phase.DELETE:
                _log.info("Deleting Pathways proxy...")
            case Phase.CLOSED:
                _log.info("Pathways proxy GKE job deletion complete.")

    def _report_link(self, snapshot: Snapshot) -> None:
        link = snapshot.link
        if link is not None and (snapshot.waits_for_link or not link.is_lost):
            text = link.text(time.time())
            if not _log.hasHandlers():
                # (Python would print a warning as it is, beside the line that is displayed.)
                return
            level = logging.WARNING if snapshot.waits_for_link else logging.INFO
            _log.log(level, "%s.", f"{text[0].upper()}{text[1:]}")

    def _report_placement(self, snapshot: Snapshot) -> None:
        placed = sum(view.state == "placed" for view in snapshot.slices)
        # Some proxies' logs do not name slices: then only the total is known.
        wanted = len(snapshot.slices) or self._wanted
        for number in range(self._placed + 1, min(placed, wanted - 1) + 1):
            _log.info("TPU slice %d/%d placed!", number, wanted)
        if self._placed < wanted and (placed >= wanted or (snapshot.placed and not placed)):
            _log.info("TPU placement for %d slice(s) complete!", wanted)
            placed = wanted
        self._placed = max(self._placed, placed)
