"""Tracks the health of slices: probes them, and reports changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import jax

from shared_pathways_service.elastic.health.probes import Answers, Probe, Probes
from shared_pathways_service.elastic.health.starts import Starts, start_text
from shared_pathways_service.elastic.policy.options import Options
from shared_pathways_service.elastic.policy.slice_health import Health, SliceState, Transition
from shared_pathways_service.elastic.waiting import Waiters
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    SliceActive,
    SliceAwaited,
    SliceDown,
    SliceHealthEvent,
    SliceLeftOut,
    SliceReturning,
    SliceSuspect,
)

__all__ = ["SliceWatch"]

_EVENTS: Mapping[SliceState, type[SliceHealthEvent]] = {
    SliceState.ACTIVE: SliceActive,
    SliceState.SUSPECT: SliceSuspect,
    SliceState.AWAITED: SliceAwaited,
    SliceState.DOWN: SliceDown,
    SliceState.RETURNING: SliceReturning,
}


#: States in which the monitor probes a slice.
_NOT_ANSWERING = (SliceState.DOWN, SliceState.SUSPECT, SliceState.AWAITED)


class SliceWatch:
    """The health of slices. Thread-safe; its creator closes it. Emits each change.

    `starting` returns the slices whose executors do not serve yet, as for `Starts`.

    Attributes:
      devices: The devices of each slice.
      dead: Whether the last probe of all slices got no answer: the proxy has ended, or hangs.
      gone: The error if all slices reported that the proxy has ended; else None.
      silent: The slices that did not answer the last probe.
      starting: Those that did not answer it because their executors start; `silent` has the others.
      changes: The number of changes of state, of slices or the proxy.
    """

    def __init__(
        self,
        devices: Mapping[int, Sequence[jax.Device]],
        options: Options,
        probe: Probe,
        emit: Callable[[Event], None],
        starting: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self.devices = devices
        self._options = options
        self._emit = emit
        self._lock = threading.Lock()
        self._health = Health(devices, options)
        self._waiters = Waiters("sps-elastic-probe")
        self._starts = Starts(starting)
        self._probes = Probes(devices, options.probe_timeout, self._waiters, probe)
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._monitor: threading.Thread | None = None
        self._waited_for = False
        self.dead = False
        self.gone: str | None = None
        self.silent: frozenset[int] = frozenset()
        self.starting: frozenset[int] = frozenset()
        self.changes = 0

    @property
    def states(self) -> dict[int, SliceState]:
        """The state of each slice."""
        with self._lock:
            return self._health.states

    def usable(self, least: int = 0) -> tuple[int, ...]:
        """Returns the slices that training may use, as `Health.usable` does."""
        with self._lock:
            return self._health.usable(time.monotonic(), least)

    def wait_for_change(self, seconds: float, since: int) -> None:
        """Waits until `changes` differs from `since`, or a time has passed.

        Meanwhile the monitor probes all slices: the waiting thread does not notice the loss of
        another slice or the proxy itself.
        """
        self.start_monitor()
        with self._changed:
            self._waited_for = True
            self._wake.set()
            self._changed.wait_for(lambda: self.changes != since, seconds)

    def ask(self, indices: Iterable[int] | None = None) -> Answers:
        """Probes slices, by default all, and updates their states.

        Takes at most `Options.probe_timeout`.
        """
        answers = self.look(indices)
        self.note(answers)
        return answers

    def look(self, indices: Iterable[int] | None = None) -> Answers:
        """Probes slices without updating their states."""
        # Also for those that will serve, but may not answer, when the probes end.
        before = self._starts.look()
        answers = self._probes.ask(self.devices if indices is None else indices)
        self._starts.answered(answers.good, before)
        self._starts.look()
        return answers.excusing(self._starts.current, self._starts.again)

    def note(self, answers: Answers) -> None:
        """Updates the states from the results of probes."""
        with self._changed:
            now = time.monotonic()
            moved = [t for i in answers.good for t in self._health.good(i)]
            moved += [t for i, why in answers.bad.items() for t in self._health.bad(i, now, why)]
            for index in answers.starting:
                moved += self._health.starting(index, start_text([index]))
            asked = {*answers.good, *answers.bad, *answers.starting}
            if answers.good or len(asked) == len(self.devices):
                self.changes += self.dead != answers.dead
                self.dead = answers.dead
                self.gone = answers.gone
                self._changed.notify_all()
            self.silent = self.silent.difference(asked).union(answers.silent)
            self.starting = self.starting.difference(asked).union(answers.starting)
        self._report(moved)

    def suspect(self, indices: Iterable[int], reason: str) -> None:
        """Records a failure that these slices may have caused."""
        with self._lock:
            moved = self._health.suspect(indices, reason)
        self._report(moved)

    def note_losses(self, indices: Collection[int]) -> None:
        """Records slices that were lost and replaced: they answer, but each counts as lost."""
        with self._lock:
            now = time.monotonic()
            known = [index for index in indices if index in self.devices]
            moved = [t for index in known for t in self._health.lost(index, now)]
        self._report(moved)

    def join(self, indices: Sequence[int]) -> None:
        """Records that training begins on these slices."""
        with self._lock:
            # Training may keep these busy from now on.
            self._waited_for = False
            moved = self._health.join(indices)
        self._report(moved)

    def start_monitor(self, poll_interval: float | None = None) -> None:
        """Probes slices that are down periodically, until `close`."""
        if self._monitor is not None:
            return
        every = self._options.poll_interval if poll_interval is None else poll_interval
        self._stop = threading.Event()
        self._monitor = threading.Thread(
            target=self._look, args=(every, self._stop), name="sps-elastic-monitor", daemon=True
        )
        self._monitor.start()

    def wake(self) -> None:
        """Probes the slices that are down now, because one may be back."""
        self._wake.set()

    def close(self) -> None:
        """Ends the threads; they restart when they are needed."""
        self._stop.set()
        self._wake.set()
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            # At most one probe is in progress.
            monitor.join(self._options.probe_timeout + 1.0)
        self._waiters.close()

    def _look(self, every: float, stop: threading.Event) -> None:
        while True:
            self._wake.wait(every)
            if stop.is_set():
                return
            self._wake.clear()
            with self._lock:
                asked: Collection[int] = self._health.in_state(*_NOT_ANSWERING)
                if self._waited_for:
                    asked = self.devices
                    self._waited_for = False
            if asked:
                self.ask(asked)

    def _report(self, moved: Sequence[Transition]) -> None:
        if moved:
            with self._changed:
                self.changes += 1
                self._changed.notify_all()
        for transition in moved:
            change = _EVENTS[transition.state]
            self._emit(change(slice=transition.slice, reason=transition.reason))
            if transition.left_out_s:
                reason, seconds = "it was lost too often recently", transition.left_out_s
                self._emit(SliceLeftOut(slice=transition.slice, duration_s=seconds, reason=reason))
