"""Work whose results have a known shape before it runs, and their content when it settles.

An operation waits for its inputs, and until its placements can compute. Then it runs (on the
executors of its placements, or where its runner puts it), and settles once: with data, or with an
error. The loss of a placement settles all its operations at once, however long XLA continues with
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.servers.devices.bound_work import run_bound
from shared_pathways_service.servers.devices.status_errors import StatusError, from_exception
from shared_pathways_service.servers.proxy.execution.executor import Executor, Meeting
from shared_pathways_service.servers.proxy.execution.openings import Opening
from shared_pathways_service.servers.proxy.execution.settling import Hold, call_in_turn
from shared_pathways_service.servers.proxy.execution.values import PendingWork, Value, fill
from shared_pathways_service.servers.proxy.execution.virtual_slices import (
    Epoch,
    enter_epochs,
    first_loss,
    leave_epochs,
)

__all__ = ["Operation", "Runner"]

#: Runs a function now or soon, on this thread or another.
Runner = Callable[[Callable[[], None]], None]

# Operations over several slices enter all their queues at once, so that no two of them wait for
# each other in different orders.
_ENTER_ALL = threading.Lock()
# Abandoned operations that still run, perhaps for ever: they may block their devices, and so any
# program there that is quick by itself.
_LEFT_BEHIND: set[Operation] = set()


class Operation:
    """One piece of work.

    Args:
      name: The name of the work, for messages.
      run: Does the work; returns one array per output.
      inputs: Read by `run`; an input's error becomes the operation's.
      outputs: Settled by this operation.
      epochs: The placements whose loss ends it.
      session_id: The session whose end ends it.
      runner: Where it runs; None: on the executors of its epochs, one program per device at a time.
      after: Operations that must have settled before (readers of data that this one consumes).
      quick: Whether the work, on one epoch, is sure to end at once: then it may run on the thread
        that starts it, if nothing else is under way. (To pass it on would take longer.)
      steps_aside: Whether it may let its executors continue before it has settled (`step_aside`).
        Dependent operations then wait for it, and do not rely on queues.
    """

    __slots__ = (
        "_after",
        "_callbacks",
        "_hold",
        "_late_callbacks",
        "_lock",
        "_meeting",
        "_outputs",
        "_quick",
        "_run",
        "_runner",
        "_running_on",
        "_steps_aside",
        "_waiting",
        "done",
        "enqueued",
        "epochs",
        "error",
        "inputs",
        "name",
        "running",
        "runs_here",
        "session_id",
    )

    def __init__(
        self,
        name: str,
        run: Callable[[], Sequence[Any]],
        *,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        epochs: tuple[Epoch, ...],
        session_id: int,
        runner: Runner | None = None,
        after: Sequence[PendingWork] = (),
        quick: bool = False,
        steps_aside: bool = False,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.epochs = epochs
        self.session_id = session_id
        self.enqueued = self.running = self.done = False
        self.error: StatusError | None = None
        #: Whether the work runs on the thread that starts it, where it must not wait.
        self.runs_here = False
        self._hold: Hold | None = None
        self._run: Callable[[], Sequence[Any]] | None = run
        self._runner = runner
        self._outputs = outputs
        self._after = after
        self._quick = quick
        self._steps_aside = steps_aside
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._late_callbacks: list[Callable[[], None]] = []
        self._waiting = 1
        # Created now: it must exist if this settles before the executors reach it.
        self._meeting = Meeting(len(epochs)) if runner is None and len(epochs) > 1 else None
        self._running_on: Executor | None = None
        for value in outputs:
            value.operation = self

    def start(self) -> None:
        """Starts waiting for the inputs; the work follows by itself."""
        lost = enter_epochs(self, self.epochs)
        if lost is not None:
            self.fail(lost)
            return
        waiting_for = _unsettled(self, self._after, has_runner=self._runner is not None)
        if self._quick and not (waiting_for or _LEFT_BEHIND) and self._run_here():
            return
        self._waiting += len(waiting_for)
        for other in waiting_for:
            if not other.add_callback(self._one_ready):
                self._one_ready()
        inputs = self.inputs
        self._one_ready()
        # An executor's queued operations read their inputs before those that are queued later.
        if not self.done and (waiting_for or self._runner is not None or self._steps_aside):
            for value in inputs:
                readers = value.readers = [r for r in value.readers or () if not r.done]
                readers.append(self)

    def add_callback(self, callback: Callable[[], None], *, is_urgent: bool = True) -> bool:
        """Calls back when the operation settles, first if urgent; False if it has settled."""
        with self._lock:
            if self.done:
                return False
            (self._callbacks if is_urgent else self._late_callbacks).append(callback)
            return True

    def fail(self, error: StatusError) -> None:
        """Settles with an error, unless settled already."""
        self._settle(error, ())

    @property
    def held_error(self) -> StatusError | None:
        """The error given to `release`: it will be the operation's."""
        return None if self._hold is None else self._hold.error

    def hold(self) -> None:
        """Delays the settling until `release` has been called for this as well."""
        with self._lock:
            if self._hold is None:
                self._hold = Hold()
            self._hold.count += 1

    def release(self, error: StatusError | None) -> None:
        """Undoes one `hold`; an error is that with which the operation is to settle."""
        with self._lock:
            hold = self._hold
            assert hold is not None, "held before"
            made = hold.release(error)
        if made is not None:
            self._settle(hold.error, made)

    def arrive(self, executor: Executor) -> None:
        """Runs the work if `executor` is the last to reach it, else waits for its end."""
        self._admit(executor, waits=True)
        if self._meeting is None or self._meeting.arrive():
            self._execute(executor)

    def abandon(self, error: StatusError) -> bool:
        """Settles with an error, and frees its executor; returns whether it still runs."""
        self.note_abandoned()
        self.fail(error)
        executor = self._running_on
        if executor is not None:
            executor.leave_behind(self)
        return self.running

    def step_aside(self) -> None:
        """Lets the executors continue with later operations in their queues meanwhile."""
        for epoch in self.epochs:
            if epoch.executor is not None:
                epoch.executor.leave_behind(self)

    def note_abandoned(self) -> None:
        """Lets nothing else run on a session's own thread while this runs, if it does."""
        with self._lock:
            if self.running:
                _LEFT_BEHIND.add(self)

    def _run_here(self) -> bool:
        """Runs at once, if the executor has nothing to do."""
        executor = self.epochs[0].executor
        if executor is None or not executor.reserve():
            return False
        try:
            if not self._admit(executor, waits=False):
                return False
            # A thread that finds it set is queued after it.
            self.enqueued = not self._steps_aside
            self.runs_here = True
            self._execute()
        finally:
            executor.release()
        return True

    def _admit(self, executor: Executor, *, waits: bool) -> bool:
        """Returns whether there is room for it, after a wait for that if it is to wait."""
        return executor.in_flight.begin_alone(self.name, waits=waits)

    def _one_ready(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting or self.done:
                return
            runner = self._runner
        if runner is not None:
            runner(self._execute)
        elif len(self.epochs) == 1:
            self._enqueue()
        else:
            with _ENTER_ALL:
                self._enqueue()

    def _enqueue(self) -> None:
        for epoch in self.epochs:
            if epoch.executor is not None:
                epoch.executor.put(self)
        # Only now: a thread that finds it set enters the same queues, and must come after.
        self.enqueued = not self._steps_aside

    def _execute(self, executor: Executor | None = None) -> None:
        run = self._run
        if run is None:  # settled already
            return
        for value in self.inputs:
            if (error := value.failure()) is not None:
                self.fail(error)
                return
        # (Before it begins: a loss or the session's end may settle it from then on.)
        inputs, outputs = self.inputs, self._outputs
        if not self._begin(executor):
            return
        try:
            self._finish(None, run_bound(run, self.epochs))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client receives it
            # (Data that was lost meanwhile may have been freed during the work.)
            lost = (value.failure() for value in inputs)
            self._finish(next(filter(None, lost), None) or from_exception(error), ())
        finally:
            self._leave()
            self._running_on = None
            if self._meeting is not None:
                self._meeting.end()
        if self.error is not None:
            for value in outputs:
                value.charge = None

    def _leave(self) -> None:
        """Notes that the work does not run any more."""
        with self._lock:
            self.running = False
            _LEFT_BEHIND.discard(self)

    def _finish(self, error: StatusError | None, arrays: Sequence[Any]) -> None:
        """Settles, or leaves that to the last `release` if the operation is held."""
        with self._lock:
            if self._hold is not None:
                error = self._hold.error or error
                if self._hold.count and not self.done:
                    self._hold.keep(error, arrays)
                    return
        self._settle(error, arrays)

    def _begin(self, executor: Executor | None) -> bool:
        """Either a loss finds this running, or it does not run."""
        with self._lock:
            if self.done or first_loss(self.epochs) is not None:
                return False
            self._running_on = executor
            self.running = True
            return True

    def _settle(self, error: StatusError | None, arrays: Sequence[Any]) -> None:
        with self._lock:
            if self.done:
                return
            if error is not None:
                self.error = error = error.copy()
            fill(self._outputs, error, arrays, frees=not self.running)
            self.done = True
            for value in self._outputs:
                value.operation = None
            callbacks = [*self._callbacks, *self._late_callbacks]
            self._callbacks, self._late_callbacks = [], []
            # A value refers to its readers: they must not refer to data, not even by a closure.
            self._run = self._runner = None
            self.inputs = self._outputs = self._after = ()
            if self._hold is not None:
                self._hold.made = None
        self._retire()
        if callbacks:
            call_in_turn(callbacks)

    def _retire(self) -> None:
        """Leaves what it has entered; once it has settled, before others learn of it."""
        leave_epochs(self, self.epochs)
        if self._meeting is not None:
            self._meeting.end()


def _unsettled(
    operation: Operation, after: Sequence[PendingWork], *, has_runner: bool
) -> list[PendingWork | Opening]:
    """Returns what an operation waits for, except what its own executors run before it."""
    waiting_for: list[PendingWork | Opening] = [other for other in after if not other.done]
    for epoch in operation.epochs:
        opening = epoch.opening
        if opening is not None and not opening.done:
            waiting_for.append(opening)
    for value in operation.inputs:
        other = value.operation
        if other is None or other.done:
            continue
        if not has_runner and other.enqueued and other.epochs is operation.epochs:
            # The same queues run it before this one.
            continue
        waiting_for.append(other)
    return waiting_for
