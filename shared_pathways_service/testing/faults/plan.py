"""Faults as objects: an action, and the step or event at which it fires."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import jax

from shared_pathways_service.events import Event

__all__ = [
    "Fault",
    "Plan",
    "World",
    "corrupt_newest",
    "fail_at",
    "flap",
    "hang",
    "kill",
    "kill_process",
    "lie",
    "on_event",
    "revive",
]


class World(Protocol):
    """Slices into which faults can be injected."""

    def kill(self, index: int, down_for: float) -> None:
        """Ends a slice at once; it returns after `down_for` seconds."""

    def hang(self, index: int, for_s: float) -> None:
        """Makes a slice hang for `for_s` seconds."""

    def revive(self, index: int) -> None:
        """Restores a slice that was killed, or hangs, now."""

    def look(self, slices: Sequence[int]) -> None:
        """Raises the error of work on these slices, if the world does not do so by itself."""


@dataclasses.dataclass
class Fault:
    """A fault that fires once.

    Attributes:
      name: Its description, for messages.
      act: Causes it; its exceptions are raised in the step at which it fires.
      step: Fires when training reaches this step; None: not by step.
      kind: Fires at an event of this kind; None: not by event.
      count: The number of the event of that kind, from 1.
      fired: How often it fired: 0 or 1.
    """

    name: str
    act: Callable[[World], None]
    step: int | None = None
    kind: str | None = None
    count: int = 1
    fired: int = 0

    def at(self, step: int) -> Fault:
        """Returns this fault, to fire when training reaches a step."""
        return dataclasses.replace(self, step=step)


class Plan:
    """Fires faults.

    The training function calls `step` before each of its steps; the manager calls `on_event`.

    Args:
      world: The slices.
      faults: The faults to inject.
    """

    def __init__(self, world: World, *faults: Fault) -> None:
        self.faults = faults
        self._world = world
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._begun: set[int] = set()
        self._failed: list[str] = []

    def step(self, step: int, slices: Sequence[int]) -> None:
        """Fires the faults of a step.

        Args:
          step: The number of completed steps.
          slices: The slices in use.
        """
        while fault := self._next_due(lambda f: f.step is not None and f.step <= step):
            self._fire(fault)
        self._world.look(slices)

    def on_event(self, event: Event) -> None:
        """Fires the faults of an event."""
        with self._lock:
            count = self._seen[event.kind] = self._seen.get(event.kind, 0) + 1
        while fault := self._next_due(lambda f: f.kind == event.kind and f.count <= count):
            self._fire(fault)

    def assert_fired(self) -> None:
        """Raises if a fault did not fire, because the test would pass without it."""
        assert not self._failed, f"these faults could not be done: {'; '.join(self._failed)}"
        missing = [fault.name for fault in self.faults if not fault.fired]
        assert not missing, f"these faults never fired: {', '.join(missing)}"

    def _next_due(self, is_due: Callable[[Fault], bool]) -> Fault | None:
        with self._lock:
            for number, fault in enumerate(self.faults):
                if number not in self._begun and is_due(fault):
                    self._begun.add(number)
                    return fault
        return None

    def _fire(self, fault: Fault) -> None:
        try:
            fault.act(self._world)
        except jax.errors.JaxRuntimeError:
            fault.fired += 1  # raising was its purpose
            raise
        except Exception as error:
            # The sender of events ignores errors of callbacks; `assert_fired` reports them.
            self._failed.append(f"{fault.name}: {error}")
            raise
        fault.fired += 1


def kill(index: int, *, down_for: float = 0.0) -> Fault:
    """A slice ends, and returns."""
    return Fault(f"kill slice {index}", lambda world: world.kill(index, down_for))


def fail_at(step: int, index: int, *, down_for: float = 0.0) -> Fault:
    """A slice ends when training reaches a step."""
    return kill(index, down_for=down_for).at(step)


def hang(index: int, *, for_s: float) -> Fault:
    """A slice hangs for a while."""
    return Fault(f"hang slice {index}", lambda world: world.hang(index, for_s))


def revive(index: int) -> Fault:
    """A slice that was killed, or hangs, returns."""
    return Fault(f"revive slice {index}", lambda world: world.revive(index))


def flap(index: int, steps: Sequence[int]) -> tuple[Fault, ...]:
    """A slice ends at each of these steps, and returns at once."""
    return tuple(fail_at(step, index) for step in steps)


def lie(step: int, text: str = "INTERNAL: an assertion failed") -> Fault:
    """An error that names no slice, though a slice might have caused it."""

    def act(world: World) -> None:
        del world
        raise jax.errors.JaxRuntimeError(text)

    return Fault(f"raise {text!r}", act, step=step)


def corrupt_newest(checkpoints: Path, *, kind: str, count: int = 1) -> Fault:
    """The largest file of the newest checkpoint loses its second half, at an event."""

    def act(world: World) -> None:
        del world
        newest = max(
            (d for d in checkpoints.iterdir() if d.name.isdigit()), key=lambda d: int(d.name)
        )
        largest = max((f for f in newest.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)

    return Fault("corrupt the newest checkpoint", act, kind=kind, count=count)


def kill_process(step: int) -> Fault:
    """The training process itself is killed when it reaches a step."""
    return Fault("kill this process", lambda _: os.kill(os.getpid(), signal.SIGKILL), step=step)


def on_event(fault: Fault, kind: str, count: int = 1) -> Fault:
    """Returns a fault, to fire at an event, e.g. during a recovery, a save or a restore."""
    return dataclasses.replace(fault, kind=kind, count=count)
