"""Manages snapshots in two slots: the last good one is kept until the next one is verified.

The arrays are copied on their devices, which takes a dispatch and no wait. The rest runs on a
thread: the copies are fetched (`client`) or copied to a second slice (`peer`), verified, and only
then published. So training is blocked for longer than the dispatch only if a snapshot is due before
the last one has ended.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Protocol

import jax

from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.elastic.trees import Tree, copy_on_devices
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import SnapshotFailed, SnapshotTaken
from shared_pathways_service.patience import timeouts

__all__ = ["Held", "SnapshotStore", "Snapshots"]


class Held(Protocol):
    """A stored state."""

    @property
    def nbytes(self) -> int:
        """The size of the stored state."""

    @property
    def on_devices(self) -> bool:
        """Whether it is lost with the devices."""

    def restore(self, like: Tree) -> Tree:
        """Returns the state, placed like this pytree of `jax.ShapeDtypeStruct`.

        Raises:
          LookupError: The stored state can no longer be read.
          jax.errors.JaxRuntimeError: It cannot be placed there.
        """

    def fetch(self) -> Tree:
        """Returns the state in this process's memory; for PRNG keys, their bits."""


class SnapshotStore(Protocol):
    """Stores states."""

    @property
    def place(self) -> str:
        """``client`` or ``peer``."""

    def keep(self, copies: Tree) -> Held:
        """Stores copies; returns when they were read back, or raises any error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Slot:
    held: Held
    progress: Progress


@dataclasses.dataclass(kw_only=True)
class _Taking:
    """A snapshot in progress, or a completed one; it began at a time in monotonic seconds."""

    store: SnapshotStore
    progress: Progress
    began: float
    blocked_s: float
    thread: threading.Thread | None = None
    published: bool = False
    given_up: bool = False


class Snapshots:
    """Takes snapshots, and restores the last good one. Its creator closes it.

    `make_store` returns the store for the next one.
    """

    def __init__(
        self, make_store: Callable[[], SnapshotStore], emit: Callable[[Event], None]
    ) -> None:
        self._make_store = make_store
        self._emit = emit
        self._published: _Slot | None = None
        self._taking: _Taking | None = None
        self._lock = threading.Lock()

    @property
    def step(self) -> int | None:
        """The step of the last good snapshot; None: there is none."""
        slot = self._published
        return None if slot is None else slot.progress.step

    def take(self, state: Tree, progress: Progress) -> None:
        """Starts a snapshot; returns when `state` may be donated."""
        began = time.monotonic()
        if not self.wait(timeouts.SNAPSHOT.s):
            self.give_up("the next one is due")
        try:
            store = self._make_store()
            copies = copy_on_devices(state)
        except jax.errors.JaxRuntimeError as error:
            self._failed(progress.step, str(error))
            return
        self._taking = taking = _Taking(
            store=store, progress=progress, began=began, blocked_s=time.monotonic() - began
        )
        taking.thread = threading.Thread(
            target=self._keep, args=(taking, [copies]), name="sps-elastic-snapshot", daemon=True
        )
        taking.thread.start()

    def restore(self, like: Tree) -> tuple[Tree, Progress] | None:
        """Returns the last good snapshot, placed like `like`; None: there is none.

        A snapshot that can no longer be read is dropped.

        Raises:
          jax.errors.JaxRuntimeError: It cannot be placed there; it is kept.
        """
        slot = self._published
        if slot is None:
            return None
        try:
            state = slot.held.restore(like)
            jax.block_until_ready(state)
        except LookupError as error:
            with self._lock:
                # (The request may be old, and a newer snapshot may exist.)
                if self._published is not slot:
                    return None
                self._published = None
            self._failed(slot.progress.step, f"it cannot be read: {error}")
            return None
        return state, slot.progress

    def wait(self, timeout: float) -> bool:
        """Waits until none is in progress; returns whether that is so."""
        taking = self._taking
        if taking is None or taking.thread is None:
            return True
        taking.thread.join(timeout)
        return not taking.thread.is_alive()

    def give_up(self, reason: str) -> None:
        """Abandons the snapshot that is in progress and hangs: it will not be published."""
        taking, self._taking = self._taking, None
        assert taking is not None, "there is one that hangs"
        with self._lock:
            if taking.published:
                return  # it has just completed
            taking.given_up = True
        self._failed(taking.progress.step, f"it hangs, and {reason}")

    def fetch(self) -> tuple[Tree, Progress] | None:
        """Returns the last good snapshot in this process's memory; raises as `Held.fetch`."""
        slot = self._published
        return None if slot is None else (slot.held.fetch(), slot.progress)

    def drop_from_devices(self) -> None:
        """Drops snapshots on devices, which are lost."""
        if self._published is not None and self._published.held.on_devices:
            self._published = None

    def close(self, timeout: float) -> None:
        """Waits until none is in progress, and drops all."""
        self.wait(timeout)
        self._published = None

    def _keep(self, taking: _Taking, copies: list[Tree]) -> None:
        step = taking.progress.step
        try:
            held = taking.store.keep(copies.pop())
        except Exception as error:  # noqa: BLE001 - whatever it is, the one before stays
            if not taking.given_up:
                self._failed(step, str(error))
            return
        with self._lock:
            if taking.given_up:
                return
            taking.published = True
            self._published = _Slot(held=held, progress=taking.progress)
        self._emit(
            SnapshotTaken(
                step=step,
                duration_s=time.monotonic() - taking.began,
                blocked_s=taking.blocked_s,
                bytes=held.nbytes,
                where=taking.store.place,
            )
        )

    def _failed(self, step: int, reason: str) -> None:
        line = reason.split("\n", 1)[0]
        self._emit(SnapshotFailed(step=step, reason=line))
