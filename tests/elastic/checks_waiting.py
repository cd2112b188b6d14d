"""Checks of waits that might not end: a step, a restore, a snapshot, a save, slices, a proxy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
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
from shared_pathways_service import elastic
from shared_pathways_service.elastic.checkpoints.arrays import Arrays
from shared_pathways_service.elastic.checkpoints.checkpoints import list_checkpoints
from shared_pathways_service.elastic.snapshots import peer_memory
from shared_pathways_service.elastic.snapshots.client_memory import ClientMemory, HostArray
from shared_pathways_service.elastic.snapshots.slots import Snapshots
from shared_pathways_service.elastic.training import restoring
from shared_pathways_service.events import Event
from shared_pathways_service.testing.faults import fail_at, hang, on_event
from tests.elastic.checks_errors import Proxy
from tests.elastic.checks_loop import raised_by
from tests.elastic.registry import check

#: Nothing waits as long as that, unless it hangs.
_DEADLINE_S = 240.0


class Gate:
    """Holds calls up until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.open = self._opened.set

    def wait(self) -> None:
        assert self._opened.wait(_DEADLINE_S), "nobody opened it"


class Late:
    """A loss that is there once a gate is open."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def copy_to_host_async(self) -> None:
        """Nothing to bring."""

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray[Any, Any]:
        del copy
        self._gate.wait()
        return np.asarray(1.0, dtype)


def take_a_long_step(
    busy_timeout: float, *, until: str, count: int, in_order: bool
) -> tuple[list[Event], list[int]]:
    """Takes a step that an event ends; devices that work in order answer no probe before."""
    gate = Gate()
    events: list[Event] = []
    attempts: list[int] = []

    def hear(event: Event) -> None:
        events.append(event)
        if [e.kind for e in events].count(until) == count:
            gate.open()

    def train_once(attempt: elastic.Attempt) -> None:
        attempts.append(attempt.number)
        state = attempt.restore({"x": np.zeros(4)})
        begun.set()
        attempt.step_done(state, Late(gate))
        attempt.settle()

    begun = threading.Event()

    def probe(_devices: Sequence[jax.Device]) -> None:
        if in_order and begun.is_set():
            gate.wait()

    # (Those that answer have all the time to do so.)
    probe_timeout = 0.1 if in_order else _DEADLINE_S
    with elastic.Manager(
        options=options(health_timeout=0.1, probe_timeout=probe_timeout, busy_timeout=busy_timeout),
        slice_key=slice_of,
        console=False,
        on_event=hear,
        probe=probe,
    ) as manager:
        try:
            manager.run(train_once)
        finally:
            gate.open()
    return events, attempts


@check
def a_step_that_takes_long_is_no_hang(directory: Path) -> None:
    del directory
    events, attempts = take_a_long_step(
        _DEADLINE_S, until="elastic.barrier.slow", count=2, in_order=False
    )
    assert attempts == [1]
    slow = [event for event in events if event.kind == "elastic.barrier.slow"]
    assert "all slices answer" in (slow[0].reason or "")
    assert not [event for event in events if event.kind == "slice.down"]


@check
def a_long_step_on_devices_that_work_in_order_is_no_hang(directory: Path) -> None:
    del directory
    events, attempts = take_a_long_step(
        _DEADLINE_S, until="elastic.barrier.slow", count=2, in_order=True
    )
    assert attempts == [1]
    slow = [event for event in events if event.kind == "elastic.barrier.slow"]
    assert "no slice answers" in (slow[0].reason or "")
    assert not [event for event in events if event.kind == "slice.down"]


@check
def slices_that_are_silent_together_for_too_long_are_down(directory: Path) -> None:
    del directory
    events, attempts = take_a_long_step(0.3, until="elastic.retry", count=1, in_order=True)
    assert attempts == [1, 2]
    assert {event.slice for event in events if event.kind == "slice.down"} == {0, 1, 2}


@check
def a_restore_that_hangs_with_its_slice_is_left(directory: Path) -> None:
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
def a_snapshot_that_hangs_with_its_slice_is_given_up(directory: Path) -> None:
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
        mock.patch.object(restoring, "_HANGING_S", 0.1),
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
def a_save_that_hangs_with_its_slice_is_given_up(directory: Path) -> None:
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
            late[0].join(_DEADLINE_S)

    with (
        mock.patch.object(Arrays, "write", write_late),
        mock.patch.object(restoring, "_HANGING_S", 0.1),
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
def copies_on_a_slice_that_hangs_are_not_waited_for(directory: Path) -> None:
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
def a_slice_that_does_not_answer_is_asked_for_one_copy_only(directory: Path) -> None:
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
        mock.patch.object(peer_memory, "_READ_S", 3.0),
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
def a_restore_that_was_left_takes_no_newer_snapshot_away(directory: Path) -> None:
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
    assert snapshots.wait(_DEADLINE_S)
    left = threading.Thread(target=snapshots.restore, args=(state,))
    left.start()
    taken.append(4)
    snapshots.take(state, elastic.Progress(step=8))
    assert snapshots.wait(_DEADLINE_S)
    gate.open()
    left.join(_DEADLINE_S)
    assert snapshots.step == 8


@check
def a_proxy_that_dies_while_slices_are_waited_for_is_replaced(directory: Path) -> None:
    proxy = Proxy()
    lost = threading.Event()
    events: list[Event] = []

    def probe(devices: Sequence[jax.Device]) -> None:
        proxy.probe(devices)
        if lost.is_set() and slice_of(devices[0]) == 1 and not proxy.connected:
            raise jax.errors.JaxRuntimeError("DATA_LOSS: virtual slice 1 was lost")

    def hear(event: Event) -> None:
        events.append(event)
        if event.kind == "elastic.wait.started":
            proxy.dead = True

    def train_once(attempt: elastic.Attempt) -> int:
        state = attempt.restore({"x": np.zeros(4)})
        while attempt.progress.step < 12:
            if attempt.progress.step == 9 and not lost.is_set():
                lost.set()
                raise jax.errors.JaxRuntimeError("DATA_LOSS: virtual slice 1 was lost")
            state = {"x": state["x"] + 1}
            attempt.step_done(state, state["x"][0])
        return int(state["x"][0])

    with elastic.Manager(
        options=options(elastic_min_slice_count=-1),
        directory=directory,
        slice_key=slice_of,
        console=False,
        on_event=hear,
        probe=probe,
        reconnect=proxy.connect,
    ) as manager:
        assert manager.run(train_once) == 12
    assert proxy.connected == 1
    kinds = [event.kind for event in events]
    assert kinds.index("elastic.wait.started") < kinds.index("elastic.reconnected")
    assert [e.data["cause"] for e in events if e.kind == "elastic.retry"] == ["slice_down", "proxy"]


@check
def a_proxy_that_is_dead_when_training_begins(directory: Path) -> None:
    del directory
    proxy = Proxy()

    def run(**others: Any) -> int:
        proxy.dead = True
        with elastic.Manager(
            options=options(elastic_timeout_seconds=0.5),
            slice_key=slice_of,
            console=False,
            probe=proxy.probe,
            **others,
        ) as manager:
            return manager.run(lambda attempt: attempt.number)

    assert run(reconnect=proxy.connect) == 2
    assert proxy.connected == 1
    with pytest.raises(elastic.ElasticRuntimeError, match="the proxy has ended: UNAVAILABLE"):
        run()


@check
def with_no_slice_left_the_last_snapshot_is_saved(directory: Path) -> None:
    all_at_once = [fail_at(11, index, down_for=GONE) for index in range(3)]
    chosen = options(snapshot_period=4, checkpoint_period=100)
    raised_by(
        elastic.ElasticRuntimeError,
        options(snapshot_period=4, checkpoint_period=100, elastic_timeout_seconds=0.5),
        *all_at_once,
        directory=directory,
    )
    [saved] = list_checkpoints(directory / "checkpoints")
    assert (saved.step, saved.state) == (8, "committed")
    # Saved from this process' memory, and yet what it was: keys are keys.
    done = train(chosen, directory=directory)
    assert done.first("elastic.restored").step == 8
    assert_same(done.result, train(chosen).result)


@check
def a_rescue_that_fails_hides_no_error(directory: Path) -> None:
    def bug(step: int) -> None:
        if step == 6:
            raise ZeroDivisionError("mine")

    with mock.patch.object(Snapshots, "fetch", side_effect=LookupError("its bits have changed")):
        error = raised_by(
            ZeroDivisionError,
            options(snapshot_period=4, checkpoint_period=100),
            directory=directory,
            pause=bug,
        )
    assert str(error) == "mine"
