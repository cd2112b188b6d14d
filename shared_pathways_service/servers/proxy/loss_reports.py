"""Reports placements that cannot be used to the resource manager (RM), which replaces them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shared_pathways_service.api.validation import fitting_text
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = ["LossReports"]


class LossReports:
    """Repeats each report on each stream to an RM that takes it, until the RM has answered it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reports: dict[int, pb.PlacementLost] = {}
        self._send: Callable[[pb.PlacementLost], None] | None = None

    def add(self, index: int, generation: int, reason: str, host_index: int | None) -> None:
        """Reports a placement of a virtual slice, on any thread; `host_index` as in the message."""
        # (The text of an error of gRPC may have any characters.)
        report = pb.PlacementLost(
            virtual_index=index,
            generation=generation,
            host_index=host_index,
            reason=fitting_text(reason),
        )
        with self._lock:
            self._reports[index] = report
            if self._send is not None:
                self._send(report)

    def answered(self, placement: pb.Placement) -> None:
        """Drops the report that the RM has answered by this placement, or by its end."""
        is_placed = placement.state == pb.Placement.PLACED
        with self._lock:
            report = self._reports.get(placement.virtual_index)
            if report is not None and placement.generation >= report.generation + is_placed:
                del self._reports[placement.virtual_index]

    def begin(self, send: Callable[[pb.PlacementLost], None]) -> None:
        """Sends the reports so far, and those to come."""
        with self._lock:
            self._send = send
            for report in self._reports.values():
                send(report)

    def end(self) -> None:
        """Stops sending until `begin`."""
        with self._lock:
            self._send = None
