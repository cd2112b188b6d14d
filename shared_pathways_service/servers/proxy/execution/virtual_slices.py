"""Virtual slices: their current placements, and the work under way on each.

An *epoch* is one placement of one virtual slice: it begins when the slice is placed, and ends when
the placement is lost. Data and work name their epochs; so these show whether data is still valid,
however often the slice has been placed again.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from shared_pathways_service.servers.devices.status_errors import Code, StatusError

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.execution.executor import Executor
    from shared_pathways_service.servers.proxy.execution.openings import Opening

__all__ = [
    "Epoch",
    "SliceChange",
    "SliceTable",
    "Work",
    "enter_epochs",
    "first_loss",
    "leave_epochs",
]


class Work(Protocol):
    """Work under way on placements, until it settles or a placement or its session ends."""

    name: str
    session_id: int
    running: bool
    done: bool

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls `callback` when the work settles; False if it has already."""

    def abandon(self, error: StatusError) -> bool:
        """Settles with an error; returns whether it still runs."""

    def note_abandoned(self) -> None:
        """Prepares to be abandoned, before its placement is replaced."""


class Epoch:
    """One placement of a virtual slice; also, without an executor, the time without a placement.

    Attributes:
      generation: The generation of the placement; None while unplaced.
      slice_id: The physical slice; empty while unplaced.
      lost: Why data and work of this epoch are lost; None while they are not.
      opening: What work here waits for before it begins; None: nothing.
      operations: The work under way here. Added by sessions, removed by threads that settle it.
    """

    __slots__ = ("executor", "generation", "index", "lost", "opening", "operations", "slice_id")

    def __init__(self, index: int, generation: int | None, slice_id: str) -> None:
        self.index = index
        self.generation = generation
        self.slice_id = slice_id
        self.lost: StatusError | None = None
        self.operations: dict[Work, None] = {}
        self.executor: Executor | None = None
        self.opening: Opening | None = None


def enter_epochs(work: Work, epochs: Sequence[Epoch]) -> StatusError | None:
    """Adds work to its placements; returns the error of one that is lost already."""
    for epoch in epochs:
        epoch.operations[work] = None
    if work.done:
        # By the loss of the first of several, before the entry in the others.
        leave_epochs(work, epochs)
    # Checked after the entry above: a loss either finds the entry, or is found here.
    return first_loss(epochs)


def first_loss(epochs: Sequence[Epoch]) -> StatusError | None:
    """Returns the error of a placement that is lost."""
    for epoch in epochs:
        if epoch.lost is not None:
            return epoch.lost
    return None


def leave_epochs(work: Work, epochs: Sequence[Epoch]) -> None:
    """Removes work from its placements."""
    for epoch in epochs:
        epoch.operations.pop(work, None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceChange:
    """The change of a virtual slice to another epoch, and what was running on the old one."""

    index: int
    old: Epoch
    new: Epoch
    reason: str
    running: Sequence[Work] = ()


class SliceTable:
    """Virtual slices and their current epochs. Thread-safe.

    Attributes:
      granted: Set while the tenant has the slices that it needs to compute, as far as known here;
        always, if there is no resource manager.
    """

    def __init__(
        self, instance_types: Sequence[str], make_executor: Callable[[Epoch], Executor]
    ) -> None:
        self.granted = threading.Event()
        self.granted.set()
        self.instance_types = tuple(instance_types)
        self._make_executor = make_executor
        self._lock = threading.Lock()
        self._listeners: list[Callable[[SliceChange], None]] = []
        self._closed = False
        self._current = [self._unplaced(i, "not placed yet") for i in range(len(instance_types))]
        self._newest = [-1] * len(instance_types)
        self._tuples: dict[tuple[int, ...], tuple[Epoch, ...]] = {}

    def epochs(self, indices: tuple[int, ...]) -> tuple[Epoch, ...]:
        """Returns the current epochs of some slices; the same tuple until one of them changes."""
        found = self._tuples.get(indices)
        if found is None:
            with self._lock:
                found = tuple(self._current[i] for i in indices)
                self._tuples[indices] = found
        return found

    def current(self) -> tuple[Epoch, ...]:
        """Returns the current epoch of every slice."""
        with self._lock:
            return tuple(self._current)

    @property
    def newest_generation(self) -> int:
        """The highest generation of any placement so far; 0 if there was none."""
        with self._lock:
            return max(0, *self._newest)

    def add_listener(self, listener: Callable[[SliceChange], None]) -> None:
        """Calls `listener` at every change, on the thread that makes it."""
        self._listeners.append(listener)

    def place(self, index: int, generation: int, slice_id: str) -> bool:
        """Places a virtual slice on a physical one, unless that is known or outdated."""
        new = Epoch(index, generation, slice_id)
        with self._lock:
            if self._closed or generation <= self._newest[index]:
                return False
            new.executor = self._make_executor(new)
            self._newest[index] = generation
            reason = f"placed on {slice_id} again"
            old = self._replace(index, new, reason)
        self._end(old, new, reason)
        return True

    def unplace(self, index: int, generation: int, reason: str) -> bool:
        """Removes a placement of a virtual slice, unless the current one is newer."""
        with self._lock:
            current = self._current[index]
            if current.generation is None or generation < current.generation:
                return False
            new = self._unplaced(index, reason)
            old = self._replace(index, new, reason)
        self._end(old, new, reason)
        return True

    def close(self) -> None:
        """Ends every placement, without listeners; nothing can be placed afterwards."""
        with self._lock:
            self._closed = True
            self._listeners.clear()
        self.granted.set()
        for epoch in self.current():
            if epoch.generation is not None:
                self.unplace(epoch.index, epoch.generation, "the proxy ends")

    def _replace(self, index: int, new: Epoch, reason: str) -> Epoch:
        old = self._current[index]
        if old.executor is not None:
            # No more work starts there; what runs there is known before new work arrives here.
            old.lost = StatusError(
                Code.DATA_LOSS,
                f"virtual slice {index} ({self.instance_types[index]}) was lost: {reason}",
            )
            for operation in list(old.operations):
                operation.note_abandoned()
        self._current[index] = new
        self._tuples = {}
        return old

    def _unplaced(self, index: int, reason: str) -> Epoch:
        epoch = Epoch(index, None, "")
        epoch.lost = StatusError(
            Code.DATA_LOSS,
            f"virtual slice {index} ({self.instance_types[index]}) is unplaced: {reason}",
        )
        return epoch

    def _end(self, old: Epoch, new: Epoch, reason: str) -> None:
        running: list[Work] = []
        if old.executor is not None and old.lost is not None:
            running = [o for o in list(old.operations) if o.abandon(old.lost)]
            old.executor.close()
        change = SliceChange(
            index=old.index, old=old, new=new, reason=reason, running=tuple(running)
        )
        for listener in self._listeners:
            listener(change)
