"""Runs a training function until it returns, again after each slice event."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

import jax

from shared_pathways_service.elastic.errors import ElasticRuntimeError, ScaleUpSignalError
from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.elastic.policy.gate import Gate, Go, Late
from shared_pathways_service.elastic.policy.options import Options, SliceRange
from shared_pathways_service.elastic.policy.slice_health import SliceState
from shared_pathways_service.elastic.policy.triage import (
    Action,
    Decision,
    Fault,
    Verdict,
    classify,
    decide,
)
from shared_pathways_service.elastic.training.attempt import Attempt
from shared_pathways_service.elastic.training.barrier import Barrier
from shared_pathways_service.elastic.training.profiling import stop_profile
from shared_pathways_service.elastic.training.restoring import States
from shared_pathways_service.errors import SliceLost
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    AttemptFailed,
    AttemptStarted,
    Reconnected,
    RunDone,
    RunStarted,
    SliceActive,
    TrainingRetried,
    WaitDone,
    WaitStarted,
)

__all__ = ["Callbacks", "Loop", "Reconnect", "RetryPolicy"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: Returns whether to continue after an attempt, numbered from 1, that ended with this error.
RetryPolicy = Callable[[int, Exception], bool]
#: Reconnects, and returns the new devices.
Reconnect = Callable[[], Sequence[jax.Device]]

#: The number of causes that are inspected behind an error.
_DEEPEST: Final = 16
#: Seconds for the end of a profile.
_PROFILE_S: Final = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Callbacks of the user.

    Attributes:
      before: Before each attempt, when its slices are known.
      after: After each event that ends an attempt.
    """

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


class Loop(Generic[T]):
    """One run. It emits its decisions; the options determine them.

    Args:
      watch: The slices.
      states: The states that training can be rewound to.
      options: Budgets and periods.
      emit: Called with all events.
      reconnect: Makes a new watch when the proxy has ended; None: the run ends then.
      retry_policy: Called in addition to `Options.elastic_max_retries`.
      callbacks: Callbacks of the user.
      begun: Called with the slices of each attempt.
      down_events: Returns how many attempts a slice has ended so far, also in earlier runs.
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
        self._retry_policy = retry_policy
        self._callbacks = callbacks
        self._begun = begun
        self._down_events = down_events
        self._allowed: SliceRange = options.slice_range(len(watch.devices))
        self._failures = 0
        self._scale_ups = 0
        self._retried: dict[str, BaseException] = {}
        self._cause = "start"

    def run(self, train: Callable[[Attempt], T]) -> T:
        """Runs `train` until it returns.

        Raises:
          ElasticRuntimeError: A budget is exhausted, or the slices did not come back in time.
          Exception: An error of `train` itself.
        """
        began = time.monotonic()
        self._tell_start()
        outcome, reason = "failed", ""
        try:
            result = self._attempts(train)
            outcome = "done"
            return result
        except Exception as error:
            reason = _first_line(error)
            self._rescue()
            raise
        except BaseException as error:
            outcome, reason = "interrupted", type(error).__name__
            raise
        finally:
            self._emit(
                RunDone(
                    step=self._states.reached,
                    duration_s=time.monotonic() - began,
                    reason=reason or None,
                    outcome=outcome,
                )
            )

    # ---- attempts

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
                self._after_scale_up(signal)
            except Exception as error:  # noqa: BLE001 - raised again unless it is a slice's
                self._after(error, slices)
            stop_profile(_PROFILE_S)

    def _try(self, train: Callable[[Attempt], T], slices: tuple[int, ...], waited_s: float) -> T:
        with self._attempt(slices, waited_s) as attempt:
            result = train(attempt)
            attempt.finish()
            return result

    @contextlib.contextmanager
    def _attempt(self, slices: tuple[int, ...], waited_s: float) -> Iterator[Attempt]:
        self.watch.join(slices)
        self._begun(slices)
        self._tell_attempt(slices, waited_s)
        if self._callbacks.before is not None:
            self._callbacks.before()
        barrier = Barrier(
            self._options.health_timeout, self._options.busy_timeout, self.watch, self._emit
        )
        attempt = Attempt(
            number=self._failures + 1,
            slices=slices,
            watch=self.watch,
            states=self._states,
            options=self._options,
            allowed=self._allowed,
            down_events=self._down_events(),
            grows=self._scale_ups < self._options.elastic_max_scale_ups,
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
        told = False
        while True:
            changes = self.watch.changes
            if self.watch.dead and self._may_reconnect():
                self._count_failure(ElasticRuntimeError("the proxy has ended"))
                self._states.settle(hangs=True)
                self._use_new_proxy()
                self._tell_retry("proxy")
                gate = Gate(self._allowed, self._options, began)
                continue
            usable = self.watch.usable(self._allowed.least)
            found = gate.look(usable, time.monotonic())
            waited_s = time.monotonic() - began
            want = self._allowed.least
            if isinstance(found, Go):
                if told:
                    have = len(found.slices)
                    self._emit(WaitDone(duration_s=waited_s, have=have, want=want))
                return found.slices, waited_s
            if isinstance(found, Late):
                raise ElasticRuntimeError(
                    f"{found.have} of {found.want} slices answer after "
                    f"{self._options.elastic_timeout_seconds:g} s",
                    hint="elastic_timeout_seconds sets how long to wait for them, "
                    "elastic_min_slice_count with how many training continues",
                )
            if not told:
                reason = f"{len(usable)} of {want} needed slices answer"
                self._emit(WaitStarted(reason=reason, have=len(usable), want=want))
                told = True
            self.watch.wait_for_change(found.at_most_s, changes)

    # ---- after an attempt

    def _after_scale_up(self, signal: ScaleUpSignalError) -> None:
        self._scale_ups += 1
        if not self._goes_on(signal):
            raise ElasticRuntimeError(
                f"the retry policy ends training at its scale-up {self._scale_ups}"
            ) from signal
        self._tell_retry("scale_up")

    def _after(self, error: Exception, slices: tuple[int, ...]) -> None:
        fault = _fault_of(error)
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
        self._count_failure(error, fault.text)
        # Objects in its frames would occupy the slices' memory during the next attempt.
        for behind in _chain(error):
            traceback.clear_frames(behind.__traceback__)
        self._retried.setdefault(fault.signature, error)
        if isinstance(error, SliceLost):
            self._rescue()
        if decision.action is Action.RECONNECT:
            self._use_new_proxy()
        self._tell_retry("proxy" if decision.action is Action.RECONNECT else "slice_down")

    def _may_reconnect(self) -> bool:
        """Returns whether a new proxy can be connected.

        Raises:
          ElasticRuntimeError: It cannot, and the proxy has certainly ended.
        """
        if self._reconnect is None and self.watch.gone is not None:
            raise ElasticRuntimeError(
                f"the proxy has ended: {self.watch.gone}",
                hint="reconnect=elastic.reconnect_with(connection) continues on a new proxy",
            )
        return self._reconnect is not None

    def _count_failure(self, error: Exception, text: str = "") -> None:
        """Counts a failed attempt; raises if it was the last one."""
        self._failures += 1
        spent = self._failures >= self._options.elastic_max_retries
        if not self._goes_on(error) or spent:
            raise ElasticRuntimeError(
                f"Elastic attempt {self._failures} failed: {text or error}",
                hint="elastic_max_retries sets the number of attempts",
            ) from error

    def _judge(
        self, error: Exception, fault: Fault, slices: tuple[int, ...]
    ) -> tuple[Decision, tuple[int, ...], bool]:
        """Returns the reaction to an error, the slices that caused it, and whether one hangs."""
        if isinstance(error, SliceLost) and len(error.slices) < len(slices):
            # The barrier has just probed them, and others answered.
            decision = decide(
                fault, error.slices, came_before=False, dead=False, can_reconnect=False
            )
            return decision, error.slices, not self.watch.silent.isdisjoint(error.slices)
        if fault.verdict is Verdict.USER:
            decision = decide(fault, (), came_before=False, dead=False, can_reconnect=False)
            return decision, (), False
        named = set(fault.slices) & set(self.watch.devices)
        self.watch.suspect(named or slices, fault.text)
        answers = self.watch.ask()
        red = tuple(sorted(i for i in answers.bad if i in slices))
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
        lacked = [i for i, state in self.watch.states.items() if state is not SliceState.ACTIVE]
        self.watch.close()
        self._states.forget_devices()
        try:
            self.watch = self._reconnect()
        except Exception as again:
            raise ElasticRuntimeError(
                f"the proxy has ended, and a new one could not be connected: {_first_line(again)}"
            ) from again
        duration_s = time.monotonic() - began
        self._emit(Reconnected(duration_s=duration_s))
        self._allowed = self._options.slice_range(len(self.watch.devices))
        answers = self.watch.ask()
        for index in sorted(set(lacked) & set(answers.good)):
            self._emit(SliceActive(slice=index, reason="a new proxy has it"))
        self.watch.start_monitor(self._options.poll_interval)

    def _goes_on(self, error: Exception) -> bool:
        """Calls the user's callback for an event, and returns whether to continue."""
        if self._callbacks.after is not None:
            self._callbacks.after()
        attempt = self._failures + self._scale_ups
        return self._retry_policy is None or self._retry_policy(attempt, error)

    def _rescue(self) -> None:
        """Saves a state that would be lost with this process, if possible."""
        try:
            self._states.rescue()
        except Exception as error:  # noqa: BLE001 - why training ends is what matters
            _log.warning("the last snapshot could not be saved: %s", _first_line(error))

    # ---- events

    def _tell_start(self) -> None:
        self._emit(
            RunStarted(
                step=self._states.newest_step() or 0,
                run_name=self._options.run_name,
                enabled=self._options.elastic_enabled,
                slices=len(self.watch.devices),
                policy=self._allowed.policy,
                min_slices=self._allowed.least,
                max_slices=self._allowed.most,
                max_attempts=self._options.elastic_max_retries,
                pid=os.getpid(),
            )
        )

    def _tell_attempt(self, slices: Sequence[int], waited_s: float) -> None:
        self._emit(
            AttemptStarted(
                step=self._states.newest_step() or 0,
                duration_s=waited_s,
                attempt=self._failures + 1,
                max_attempts=self._options.elastic_max_retries,
                cause=self._cause,
                slices=tuple(slices),
                slice_count=len(slices),
                down_events=self._down_events(),
            )
        )

    def _tell_retry(self, cause: str) -> None:
        self._cause = cause
        self._emit(
            TrainingRetried(
                step=self._states.reached,
                attempt=self._failures + 1,
                max_attempts=self._options.elastic_max_retries,
                cause=cause,
            )
        )


def _fault_of(error: BaseException) -> Fault:
    """Returns the fault of an error, or of its cause."""
    for found in _chain(error):
        if isinstance(found, SliceLost):
            return Fault(verdict=Verdict.SLICE, text=found.message, slices=found.slices)
        if isinstance(found, jax.errors.JaxRuntimeError):
            return classify(str(found))
    return Fault(verdict=Verdict.USER, text=_first_line(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes, in the order of a traceback."""
    found: BaseException | None = error
    for _ in range(_DEEPEST):
        if found is None:
            return
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
