"""Checks of long steps, and of waits for slices and proxies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from harness.elastic.example_training import GONE, assert_same, options, slice_of, train
from shared_pathways_service import elastic
from shared_pathways_service.elastic.checkpoints.files import list_checkpoints
from shared_pathways_service.elastic.snapshots.slots import Snapshots
from shared_pathways_service.events import Event
from shared_pathways_service.testing.faults import fail_at
from tests.elastic.checks_errors import Proxy
from tests.elastic.gate import DEADLINE_S, Gate
from tests.elastic.raised import raised_by
from tests.elastic.registry import check


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
    probe_timeout = 0.1 if in_order else DEADLINE_S
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
def a_long_step_is_not_a_hang(directory: Path) -> None:
    del directory
    events, attempts = take_a_long_step(
        DEADLINE_S, until="elastic.barrier.slow", count=2, in_order=False
    )
    assert attempts == [1]
    slow = [event for event in events if event.kind == "elastic.barrier.slow"]
    assert "all slices answer" in (slow[0].reason or "")
    assert not [event for event in events if event.kind == "slice.down"]


@check
def a_long_step_on_ordered_devices_is_not_a_hang(directory: Path) -> None:
    del directory
    events, attempts = take_a_long_step(
        DEADLINE_S, until="elastic.barrier.slow", count=2, in_order=True
    )
    assert attempts == [1]
    slow = [event for event in events if event.kind == "elastic.barrier.slow"]
    assert "no slice answers" in (slow[0].reason or "")
    assert not [event for event in events if event.kind == "slice.down"]


@check
def slices_silent_together_for_too_long_are_down(directory: Path) -> None:
    del directory
    events, attempts = take_a_long_step(0.3, until="elastic.retry", count=1, in_order=True)
    assert attempts == [1, 2]
    assert {event.slice for event in events if event.kind == "slice.down"} == {0, 1, 2}


@check
def a_proxy_that_dies_during_a_wait_for_slices_is_replaced(directory: Path) -> None:
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
def a_dead_proxy_at_the_start_of_training(directory: Path) -> None:
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
def without_a_slice_the_last_snapshot_is_saved(directory: Path) -> None:
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
def a_failed_rescue_does_not_hide_the_error(directory: Path) -> None:
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


@check
def slices_that_do_not_return_in_time(directory: Path) -> None:
    error = raised_by(
        elastic.ElasticRuntimeError,
        options(elastic_min_slice_count=-1, elastic_timeout_seconds=0.5),
        fail_at(4, 1, down_for=GONE),
        directory=directory,
    )
    assert "2 of 3 slices answer after 0.5 s" in str(error)
