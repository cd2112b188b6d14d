"""Checks of restores, snapshots and saves that hang with their slice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from harness.elastic.example_training import (
    GONE,
    STEPS,
    assert_same,
    options,
    slice_of,
    train,
    world,
)
from harness.patience import patience
from shared_pathways_service import elastic
from shared_pathways_service.elastic.checkpoints.arrays import Arrays
from shared_pathways_service.elastic.checkpoints.files import list_checkpoints
from shared_pathways_service.elastic.snapshots import peer_memory
from shared_pathways_service.elastic.snapshots.client_memory import ClientMemory, HostArray
from shared_pathways_service.elastic.snapshots.slots import Snapshots
from shared_pathways_service.testing.faults import fail_at, hang, on_event
from tests.elastic.gate import DEADLINE_S, Gate
from tests.elastic.registry import check


@check
def a_restore_that_hangs_with_its_slice_is_abandoned(directory: Path) -> None:
    del directory  # what is restored is the snapshot
    gate = Gate()
    brought = HostArray.put
    hung: list[str] = []

    def bring(self: HostArray, sharding: Any) -> jax.Array:
        if not hung:
            hung.append("once")
            simulated.hang(2, GONE)
            gate.wait()
        return brought(self, sharding)

    with world() as simulated, mock.patch.object(HostArray, "put", bring):
        try:
            done = train(
                options(snapshot_period=4, health_timeout=0.2, probe_timeout=1.0),
                fail_at(11, 1),
                slices=simulated,
            )
        finally:
            gate.open()
    assert done.attempts[:2] == [(0, 1, 2), (0, 1, 2)]
    assert 2 not in done.attempts[2]
    errors = done.all("elastic.error")
    assert "restoring did not end" in (errors[1].reason or "")
    assert done.result["count"] == STEPS


@check
def a_snapshot_that_hangs_with_its_slice_is_abandoned(directory: Path) -> None:
    del directory
    gate = Gate()
    kept = ClientMemory.keep
    taken: list[int] = []

    def keep(self: ClientMemory, copies: Any) -> Any:
        taken.append(1)
        if len(taken) == 2:  # that of step 8
            gate.wait()
        return kept(self, copies)

    with (
        mock.patch.object(ClientMemory, "keep", keep),
        patience(0.1),
    ):
        try:
            done = train(
                options(snapshot_period=4, health_every=1, health_timeout=0.5, probe_timeout=4.0),
                on_event(hang(1, for_s=GONE), "elastic.step", 9),
                back_at=[16],
            )
        finally:
            gate.open()
    [failed] = done.all("snapshot.failed")
    assert failed.step == 8
    assert "it hangs" in (failed.reason or "")
    # The one before it is what training goes back to; what comes late is published by nobody.
    assert done.all("elastic.restored")[1].step == 4
    assert done.result["count"] == STEPS


@check
def a_save_that_hangs_with_its_slice_is_abandoned(directory: Path) -> None:
    gate = Gate()
    write = Arrays.write
    late: list[threading.Thread] = []

    def write_late(self: Arrays, step: int, *rest: Any, **others: Any) -> int:
        if step == 10 and not late:
            late.append(threading.current_thread())
            gate.wait()
        return write(self, step, *rest, **others)

    def go_on(step: int) -> None:
        if step == 17:
            # The slice has come to itself: what it was to save is written, and not committed.
            gate.open()
            late[0].join(DEADLINE_S)

    with (
        mock.patch.object(Arrays, "write", write_late),
        patience(0.1),
    ):
        try:
            done = train(
                options(health_every=1, health_timeout=0.5, probe_timeout=4.0),
                on_event(hang(1, for_s=GONE), "elastic.step", 10),
                directory=directory,
                back_at=[16],
                pause=go_on,
            )
        finally:
            gate.open()
    failed = [event.reason for event in done.all("checkpoint.failed") if event.step == 10]
    assert failed == [
        "it hangs, and its slice does not answer",
        "an earlier save of this step hangs, and may go on",
    ]
    assert done.all("elastic.restored")[1].step == 5
    assert done.result["count"] == STEPS
    found = {c.step for c in list_checkpoints(directory / "checkpoints") if c.state == "committed"}
    assert found == {5, 15, 20}


@check
def copies_on_a_hanging_slice_are_not_awaited(directory: Path) -> None:
    del directory
    gate = Gate()
    unchanged = peer_memory._is_unchanged
    asked: list[int] = []

    def is_unchanged(copy: Any) -> bool:
        asked.append(copy.slice)
        if copy.slice == 0:
            gate.wait()
        return unchanged(copy)

    with mock.patch.object(peer_memory, "_is_unchanged", is_unchanged):
        try:
            done = train(
                options(
                    snapshot_period=4,
                    snapshot_to="peer",
                    health_every=1,
                    health_timeout=0.5,
                    probe_timeout=2.0,
                ),
                on_event(hang(0, for_s=GONE), "elastic.step", 9),
            )
        finally:
            gate.open()
    assert done.attempts == [(0, 1, 2), (1, 2)]
    restored = done.all("elastic.restored")[1]
    assert (restored.data["origin"], restored.step) == ("snapshot", 8)
    # Those that answer are asked first, and are enough.
    assert set(asked) == {1}


@check
def a_silent_slice_is_asked_for_one_copy_only(directory: Path) -> None:
    del directory
    devices = {i: jax.devices()[4 * i : 4 * i + 4] for i in (0, 1)}
    mesh = jax.sharding.Mesh(np.array(devices[0]), ("x",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    state = {"x": jax.device_put(np.arange(8.0), spread)}
    unchanged = peer_memory._is_unchanged
    gate, asked = Gate(), list[int]()

    def is_unchanged(copy: Any) -> bool:
        asked.append(copy.slice)
        if copy.slice in silent:
            gate.wait()
        return unchanged(copy)

    with (
        mock.patch.object(peer_memory, "_is_unchanged", is_unchanged),
        patience(0.1),
    ):
        kept = peer_memory.PeerMemory(devices, slice_of).keep(state)
        silent = {0}
        try:
            # Of each of the four pieces the first copy lies on the slice that is silent.
            assert_same(kept.fetch(), {"x": np.arange(8.0)})
            assert asked == [0, 1, 1, 1, 1]
            silent = {0, 1}
            with pytest.raises(LookupError, match=r"no copy .* slice 1 does not answer"):
                kept.fetch()
        finally:
            gate.open()


@check
def an_abandoned_restore_does_not_discard_a_newer_snapshot(directory: Path) -> None:
    del directory
    gate = Gate()

    class Gone:
        """What cannot be read any more, which takes a while to be seen."""

        nbytes, on_devices = 0, True

        def restore(self, like: Any) -> Any:
            gate.wait()
            raise LookupError("its slice is gone")

        def fetch(self) -> Any:
            raise NotImplementedError

    class Store(ClientMemory):
        def keep(self, copies: Any) -> Any:
            return Gone() if not taken else super().keep(copies)

    taken: list[int] = []
    snapshots = Snapshots(Store, lambda _: None)
    state = {"x": np.arange(4.0)}
    snapshots.take(state, elastic.Progress(step=4))
    assert snapshots.wait(DEADLINE_S)
    left = threading.Thread(target=snapshots.restore, args=(state,))
    left.start()
    taken.append(4)
    snapshots.take(state, elastic.Progress(step=8))
    assert snapshots.wait(DEADLINE_S)
    gate.open()
    left.join(DEADLINE_S)
    assert snapshots.step == 8
