"""Runs a training function until it returns, again after each slice event."""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import jax

from shared_pathways_service.elastic.errors import (
    ElasticRuntimeError,
    ScaleUpSignalError,
    first_line,
)
from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.elastic.health.starts import start_text
from shared_pathways_service.elastic.policy.gate import Gate, Go, Late
from shared_pathways_service.elastic.policy.options import Options
from shared_pathways_service.elastic.policy.slice_health import SliceState
from shared_pathways_service.elastic.policy.triage import Action, Decision, Fault, Verdict, decide
from shared_pathways_service.elastic.training.attempt import Attempt
from shared_pathways_service.elastic.training.barrier import Barrier
from shared_pathways_service.elastic.training.budget import Budget, Callbacks, RetryPolicy
from shared_pathways_service.elastic.training.faults import chain, fault_of
from shared_pathways_service.elastic.training.restoring import States
from shared_pathways_service.elastic.training.run_report import RunReport
from shared_pathways_service.errors import SliceLost
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    AttemptFailed,
    Reconnected,
    SliceActive,
    WaitDone,
    WaitStarted,
)

__all__ = ["Loop", "Reconnect"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: Reconnects, and returns the new devices.
Reconnect = Callable[[], Sequence[jax.Device]]


class Loop(Generic[T]):
    """One run. It emits its decisions; the options determine them.

    Without `reconnect`, which makes a new watch, the run ends with its proxy. `begun` gets the
    slices of each attempt; `down_events` returns how many attempts a slice has ended so far, also
    in earlier runs.
    """

    def __init__(
        self,
        watch: SliceWatch,
        states: States,
        options: Options,
        emit: Callable[[Event], None],
        *,
        reconnect: Callable[[], SliceWatch] | None,
        retry_policy: RetryPolicy | None,
        callbacks: Callbacks,
        begun: Callable[[tuple[int, ...]], None],
        down_events: Callable[[], int],
    ) -> None:
        self.watch = watch
        self._states = states
        self._options = options
        self._emit = emit
        self._reconnect = reconnect
        self._callbacks = callbacks
        self._begun = begun
        self._down_events = down_events
        self._allowed = options.slice_range(len(watch.devices))
        self._budget = Budget(options, retry_policy, callbacks)
        self._report = RunReport(emit, options, states, self._budget, down_events)
        self._retried: dict[str, BaseException] = {}

    def run(self, train: Callable[[Attempt], T]) -> T:
        """Runs `train` until it returns.

        Raises:
          ElasticRuntimeError: A budget is exhausted, or the slices did not come back in time.
          Exception: An error of `train` itself.
        """
        began = time.monotonic()
        self._report.started(len(self.watch.devices), self._allowed)
        outcome, reason = "failed", ""
        try:
            result = self._attempts(train)
            outcome = "done"
            return result
        except Exception as error:
            reason = first_line(error)
            self._rescue()
            raise
        except BaseException as error:
            outcome, reason = "interrupted", type(error).__name__
            raise
        finally:
            self._report.done(time.monotonic() - began, outcome, reason)

    def _attempts(self, train: Callable[[Attempt], T]) -> T:
        if not self._options.elastic_enabled:
            slices = tuple(self.watch.devices)[: self._allowed.most]
            return self._try(train, slices, 0.0)
        self.watch.ask()
        self.watch.start_monitor(self._options.poll_interval)
        while True:
            slices, waited_s = self._wait_for_slices()
            try:
                return self._try(train, slices, waited_s)
            except ScaleUpSignalError as signal:
                self._budget.count_scale_up(signal)
                self._report.retried("scale_up")
            except Exception as error:  # noqa: BLE001 - raised again unless it is a slice's
                self._after(error, slices)

    def _try(self, train: Callable[[Attempt], T], slices: tuple[int, ...], waited_s: float) -> T:
        with self._attempt(slices, waited_s) as attempt:
            result = train(attempt)
            attempt.finish()
            return result

    @contextlib.contextmanager
    def _attempt(self, slices: tuple[int, ...], waited_s: float) -> Iterator[Attempt]:
        self.watch.join(slices)
        self._begun(slices)
        self._report.attempt_started(slices, waited_s)
        if self._callbacks.before is not None:
            self._callbacks.before()
        barrier = Barrier(
            self._options.health_timeout, self._options.busy_timeout, self.watch, self._emit
        )
        attempt = Attempt(
            number=self._budget.failures + 1,
            slices=slices,
            watch=self.watch,
            states=self._states,
            options=self._options,
            allowed=self._allowed,
            down_events=self._down_events(),
            grows=self._budget.may_scale_up,
            barrier=barrier,
            emit=self._emit,
        )
        try:
            with jax.default_device(self.watch.devices[slices[0]][0]):
                yield attempt
        finally:
            attempt.close()
            barrier.close()

    def _wait_for_slices(self) -> tuple[tuple[int, ...], float]:
        began = time.monotonic()
        gate = Gate(self._allowed, self._options, began)
        is_announced = False
        while True:
            changes = self.watch.changes
            if self.watch.dead and self._may_reconnect():
                self._budget.count_failure(self._without_proxy())
                self._states.settle(hangs=True)
                self._use_new_proxy()
                self._report.retried("proxy")
                gate = Gate(self._allowed, self._options, began)
                continue
            usable = self.watch.usable(self._allowed.least)
            found = gate.look(usable, time.monotonic())
            waited_s = time.monotonic() - began
            want = self._allowed.least
            if isinstance(found, Go):
                if is_announced:
                    have = len(found.slices)
                    self._emit(WaitDone(duration_s=waited_s, have=have, want=want))
                return found.slices, waited_s
            if isinstance(found, Late):
                raise ElasticRuntimeError(
                    f"{found.have} of {found.want} slices answer after "
                    f"{self._options.elastic_timeout_seconds:g} s{self._starting_text()}",
                    hint="elastic_timeout_seconds sets how long to wait for them, "
                    "elastic_min_slice_count with how many training continues",
                )
            if not is_announced:
                reason = f"{len(usable)} of {want} needed slices answer{self._starting_text()}"
                self._emit(WaitStarted(reason=reason, have=len(usable), want=want))
                is_announced = True
            self.watch.wait_for_change(found.at_most_s, changes)

    def _after(self, error: Exception, slices: tuple[int, ...]) -> None:
        fault = fault_of(error)
        decision, red, hangs = self._judge(error, fault, slices)
        retries = decision.action in {Action.RETRY, Action.RECONNECT}
        self._emit(
            AttemptFailed(
                step=self._states.reached,
                reason=fault.text,
                error_type=type(error).__name__,
                verdict=decision.verdict.value,
                decision="retry" if retries else "raise",
                slices=tuple(red),
            )
        )
        if decision.action is Action.RAISE:
            raise error
        if decision.action is Action.RAISE_BOTH:
            raise error from self._retried[fault.signature]
        self._states.settle(hangs=hangs)
        self._budget.count_failure(error, fault.text)
        # Objects in its frames would occupy the slices' memory during the next attempt.
        for behind in chain(error):
            traceback.clear_frames(behind.__traceback__)
        self._retried.setdefault(fault.signature, error)
        if isinstance(error, SliceLost):
            self._rescue()
        if decision.action is Action.RECONNECT:
            self._use_new_proxy()
        self._report.retried("proxy" if decision.action is Action.RECONNECT else "slice_down")

    def _starting_text(self) -> str:
        """Returns the rest of a message about a wait: which slices start."""
        starting = self.watch.starting
        return f"; {start_text(starting)}" if starting else ""

    def _without_proxy(self) -> ElasticRuntimeError:
        """Returns the error of a proxy that has ended or hangs."""
        if self.watch.gone is not None:
            return ElasticRuntimeError(f"the proxy has ended: {self.watch.gone}")
        return ElasticRuntimeError(f"no slice answers within {self._options.probe_timeout:g} s")

    def _may_reconnect(self) -> bool:
        """Returns whether a new proxy can be connected; raises if the proxy has certainly ended."""
        if self._reconnect is None and self.watch.gone is not None:
            raise ElasticRuntimeError(
                f"the proxy has ended: {self.watch.gone}",
                hint="reconnect=elastic.reconnect_with(connection) continues on a new proxy",
            )
        return self._reconnect is not None

    def _judge(
        self, error: Exception, fault: Fault, slices: tuple[int, ...]
    ) -> tuple[Decision, tuple[int, ...], bool]:
        """Returns the reaction to an error, the slices that caused it, and whether one hangs."""
        if isinstance(error, SliceLost) and len(error.slices) < len(slices):
            # The barrier has just probed them, and others answered.
            decision = decide(fault, error.slices)
            return decision, tuple(error.slices), not self.watch.silent.isdisjoint(error.slices)
        if fault.verdict is Verdict.USER:
            return decide(fault, ()), (), False
        named = set(fault.slices) & set(self.watch.devices)
        self.watch.suspect(named or slices, fault.text)
        answers = self.watch.ask()
        red = tuple(sorted(i for i in (*answers.bad, *answers.starting) if i in slices))
        # A spare has replaced it already: it answers, but its arrays are lost.
        self.watch.note_losses(set(fault.slices) - set(answers.bad))
        decision = decide(
            fault,
            red,
            came_before=fault.signature in self._retried,
            dead=answers.dead,
            can_reconnect=self._reconnect is not None,
        )
        return decision, red or fault.slices, bool(answers.silent)

    def _use_new_proxy(self) -> None:
        assert self._reconnect is not None
        began = time.monotonic()
        missing = [i for i, state in self.watch.states.items() if state is not SliceState.ACTIVE]
        before = self._without_proxy()
        self.watch.close()
        self._states.forget_devices()
        try:
            self.watch = self._reconnect()
        except Exception as again:
            raise ElasticRuntimeError(
                f"{before}, and a new proxy could not be connected: {first_line(again)}"
            ) from again
        self._emit(Reconnected(duration_s=time.monotonic() - began))
        self._allowed = self._options.slice_range(len(self.watch.devices))
        answers = self.watch.ask()
        for index in sorted(set(missing) & set(answers.good)):
            self._emit(SliceActive(slice=index, reason="a new proxy has it"))
        self.watch.start_monitor(self._options.poll_interval)

    def _rescue(self) -> None:
        """Saves a state that would be lost with this process, if possible."""
        try:
            self._states.rescue()
        except Exception as error:  # noqa: BLE001 - why training ends is what matters
            _log.warning("the last snapshot could not be saved: %s", first_line(error))
