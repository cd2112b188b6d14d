"""Disrupts the soak of elastic training: one disruption after the other, each to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from harness.deadlines import deadline
from harness.elastic import example_training
from shared_pathways_service.events import Event
from shared_pathways_service.runtime import allocator
from stress.elastic_soak.disruptions import (
    NOTICED_S,
    Disruption,
    LateError,
    SoakError,
    Survival,
)
from stress.elastic_soak.training import Training
from stress.elastic_soak.worlds import World
from stress.growth import Held

__all__ = ["CHECKPOINT_PERIOD", "WHOLE_S", "Disruptor"]

CHECKPOINT_PERIOD: Final = 20
#: Seconds that training may take to be on all slices again.
WHOLE_S: Final = deadline(300.0)
#: Steps on all slices, one after the other, after which a disruption is over.
_WHOLE_STEPS: Final = 5


class Disruptor:
    """Does one disruption after the other, and waits for each to be over. A thread; `join` it.

    Args:
      world: Where.
      training: The run.
      disruptions: What shall happen.
      after_each: Called with each disruption and the usage of this process.
    """

    def __init__(
        self,
        world: World,
        training: Training,
        disruptions: Sequence[Disruption],
        after_each: Callable[[Survival, Held], None],
    ) -> None:
        self._world = world
        self._training = training
        self._disruptions = disruptions
        self._after_each = after_each
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._began = time.monotonic()
        self._step = 0
        #: When the last fault was made: steps completed before do not count.
        self._acted = 0.0
        self.failure: str | None = None
        self.current: Survival | None = None
        #: Unplanned errors between two disruptions.
        self.unplanned: list[str] = []
        self._thread = threading.Thread(target=self._run, name="disruptor")

    def add(self, event: Event) -> None:
        """Takes an event of the run."""
        self._training.add(event)
        self._events.put(event)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Disturbs for the length of the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._closed.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            self._wait_until_whole(None)
            for disruption in self._disruptions:
                self._closed.wait(disruption.after_s)
                self._one(disruption)
        except SoakError as error:
            self.failure = f"{self.current}: {error}"
            print(self.failure, file=sys.stderr, flush=True)
            faulthandler.dump_traceback(file=sys.stderr)
        except Exception as error:  # noqa: BLE001 - told by who waits
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._training.end()

    def _one(self, disruption: Disruption) -> None:
        survival = Survival(kind=disruption.kind, slices=list(disruption.slices))
        self._drain()
        if disruption.kind == "save":
            self._wait_for(_is_saved_next, None, NOTICED_S, "a save")
            self._closed.wait(disruption.delay_s)
        self.current = survival
        survival.at_step = self._step
        began = self._acted = time.monotonic()
        survival.at_s = began - self._began
        self._act(disruption, survival)
        survival.recovered_s = self._wait_until_recovered(survival) - began
        if disruption.kind == "flap":
            for index in disruption.slices[1:]:
                self._wait_until_whole(survival)
                survival.reasons.append("again")
                self._kill(index, disruption.down_for)
                self._wait_until_recovered(survival)
        self._wait_until_whole(survival)
        survival.whole_s = time.monotonic() - began
        survival.survived = True
        self.current = None
        # Garbage in circles is not held, nor what glibc keeps of freed memory: it has a heap for
        # each of many threads, and holes in all of them.
        gc.collect()
        allocator.trim()
        held = Held.of(os.getpid())
        # jaxlib makes a thread for each concurrently waiting call, and retains them all: their
        # number shows how busy the machine was. Those that Python made are the program's, and ours.
        survival.native_threads = held.threads - threading.active_count()
        self._after_each(survival, dataclasses.replace(held, threads=threading.active_count()))

    def _act(self, disruption: Disruption, survival: Survival) -> None:
        first, *others = disruption.slices or (0,)
        match disruption.kind:
            case "hang":
                self._hang_until_noticed(first, disruption.down_for, survival)
            case "lie":
                self._training.lie(disruption)
                if not self._training.lied.wait(NOTICED_S):
                    raise LateError(f"waited {NOTICED_S:g} s for a step that lies")
                # Until then it is down: with all slices well, the error would be the program's.
                self._wait_for(_is_error, survival, NOTICED_S, "an error")
                self._closed.wait(disruption.down_for)
                self._world.revive(first)
            case "proxy":
                self._world.kill_proxy()
            case "double":
                for index in disruption.slices:
                    self._kill(index, disruption.down_for)
            case "recovery":
                self._kill(first, disruption.down_for)
                moment = disruption.moment
                self._wait_for(lambda e: e.kind == moment, survival, NOTICED_S, moment)
                self._closed.wait(disruption.delay_s)
                for index in others:
                    self._kill(index, disruption.down_for)
            case _:
                self._kill(first, disruption.down_for)

    def _hang_until_noticed(self, index: int, for_s: float, survival: Survival) -> None:
        """Makes a slice hang for a time, and longer while it is not used, as in a save."""
        deadline = time.monotonic() + NOTICED_S
        while not survival.reasons:
            self._world.hang(index, for_s)
            self._acted = time.monotonic()
            try:
                self._wait_for(_is_error, survival, for_s / 2, "an error")
            except LateError:
                if time.monotonic() > deadline:
                    raise

    def _kill(self, index: int, down_for: float) -> None:
        self._world.kill(index, down_for)
        self._acted = time.monotonic()

    # ---- waiting

    def _wait_until_recovered(self, survival: Survival) -> float:
        """Waits for the error of a loss, then for a step; returns when that was completed."""
        if not survival.reasons or survival.reasons[-1] == "again":
            self._wait_for(_is_error, survival, NOTICED_S, "an error")
        return self._wait_for(self._is_new_step, survival, WHOLE_S, "a step").monotonic

    def _wait_until_whole(self, survival: Survival | None) -> None:
        in_a_row = 0

        def is_last(event: Event) -> bool:
            nonlocal in_a_row
            if event.kind in {"elastic.error", "elastic.attempt.started"}:
                in_a_row = 0
            elif self._is_new_step(event):
                in_a_row = (
                    in_a_row + 1 if event.data["slice_count"] == example_training.SLICES else 0
                )
            return in_a_row >= _WHOLE_STEPS

        self._wait_for(is_last, survival, WHOLE_S, "training to be on all slices")

    def _is_new_step(self, event: Event) -> bool:
        # (A recorded one that is reported when it is restored has no duration.)
        done = event.kind == "elastic.step" and event.duration_s is not None
        return done and event.monotonic > self._acted

    def _wait_for(
        self, is_it: Callable[[Event], bool], survival: Survival | None, limit_s: float, what: str
    ) -> Event:
        deadline = time.monotonic() + limit_s
        while not self._closed.is_set():
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise LateError(f"waited {limit_s:g} s for {what}") from None
            self._note(event, survival)
            if event.kind == "elastic.run.done":
                raise SoakError(f"training ended: {event.reason}")
            if is_it(event):
                return event
        raise SoakError("training ended")

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._note(self._events.get_nowait(), None)

    def _note(self, event: Event, survival: Survival | None) -> None:
        if event.kind == "elastic.step":
            self._step = event.step or 0
        if survival is not None:
            survival.add(event)
        elif event.kind == "elastic.error":
            self.unplanned.append(f"step {event.step}: {event.reason}"[:200])


def _is_error(event: Event) -> bool:
    return event.kind == "elastic.error"


def _is_saved_next(event: Event) -> bool:
    return event.kind == "elastic.step" and (event.step or 0) % CHECKPOINT_PERIOD == 0
