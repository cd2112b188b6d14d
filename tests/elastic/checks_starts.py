"""Checks of slices whose executors start late: they are waited for, and not lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from harness.elastic.example_training import STEPS, options, slice_of, train
from shared_pathways_service import elastic
from shared_pathways_service.elastic import manager as manager_module
from shared_pathways_service.elastic.health.probes import Answers
from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.events import Event
from shared_pathways_service.testing.faults import SimulatedSlices
from tests.elastic.checks_waiting import Late
from tests.elastic.gate import Gate
from tests.elastic.registry import check


@dataclasses.dataclass(frozen=True)
class Status:
    """The used part of a connection's status."""

    starting: Mapping[int, int]


class Connection:
    """A connection all of whose slices start; CPU devices are of slice 0 for it."""

    starts = 0

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        return tuple(jax.devices())

    def status(self) -> Status:
        return Status(starting={0: 1})

    def start(self) -> None:
        self.starts += 1

    def close(self) -> None:
        """Nothing is open."""


def run(
    chosen: elastic.Options,
    probe: Callable[[Sequence[jax.Device]], None],
    hear: Callable[[Event], object],
    **others: Any,
) -> int:
    with elastic.Manager(
        options=chosen,
        slice_key=slice_of,
        console=False,
        on_event=hear,
        probe=probe,
        **others,
    ) as manager:
        return manager.run(lambda attempt: len(attempt.slices))


@check
def slices_that_start_late_are_waited_for(directory: Path) -> None:
    del directory
    gate = Gate()
    connection = Connection()
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        if event.kind == "elastic.wait.started":
            gate.open()

    chosen = options(elastic_min_slice_count=-1, probe_timeout=0.1, elastic_max_retries=1)
    reconnect = elastic.reconnect_with(connection)
    try:
        assert run(chosen, lambda _: gate.wait(), hear, reconnect=reconnect) == 3
    finally:
        gate.open()
    assert connection.starts == 0
    kinds = [event.kind for event in events]
    assert "slice.down" not in kinds
    assert "elastic.retry" not in kinds
    awaited = [event for event in events if event.kind == "slice.awaited"]
    assert {event.slice: event.reason for event in awaited} == {
        index: f"slice {index} starts: its executors do not serve yet" for index in range(3)
    }
    [wait] = [event for event in events if event.kind == "elastic.wait.started"]
    assert wait.reason == (
        "0 of 3 needed slices answer; slices 0, 1, 2 start: their executors do not serve yet"
    )
    assert kinds.index("slice.awaited") < kinds.index("slice.active")


@check
def slices_that_do_not_start_in_time_are_named(directory: Path) -> None:
    del directory
    gate = Gate()
    connection = Connection()
    chosen = options(elastic_min_slice_count=-1, probe_timeout=0.1, elastic_timeout_seconds=0.3)
    reconnect = elastic.reconnect_with(connection)
    try:
        with pytest.raises(elastic.ElasticRuntimeError) as raised:
            run(chosen, lambda _: gate.wait(), lambda _: None, reconnect=reconnect)
    finally:
        gate.open()
    assert "0 of 3 slices answer after 0.3 s; slices 0, 1, 2 start" in str(raised.value)
    assert connection.starts == 0


@check
def a_shrunk_run_takes_a_slice_that_started_late(directory: Path) -> None:
    del directory
    gate = Gate()

    class Slices(SimulatedSlices):
        def probe(self, devices: Sequence[jax.Device]) -> None:
            if slice_of(devices[0]) == 1:
                gate.wait()
            super().probe(devices)

    def go_on(step: int) -> None:
        if step == 5:
            gate.open()

    try:
        with (
            Slices(slice_of) as simulated,
            # (On CPU devices no connection knows one slice from another.)
            mock.patch.object(manager_module, "starting_of", return_value=lambda: {1: 1}),
        ):
            done = train(options(probe_timeout=3.0), slices=simulated, pause=go_on, back_at=[6])
    finally:
        gate.open()
    assert done.attempts == [(0, 2), (0, 1, 2)]
    assert "slice.down" not in done.kinds()
    assert done.result["count"] == STEPS


@check
def a_step_does_not_wait_for_the_replacement_of_a_lost_slice(directory: Path) -> None:
    del directory
    gate = Gate()
    reported: dict[int, int] = {}
    attempts: list[tuple[int, ...]] = []
    events: list[Event] = []

    def probe(devices: Sequence[jax.Device]) -> None:
        if reported and slice_of(devices[0]) == 1:
            gate.wait()

    def train_once(attempt: elastic.Attempt) -> None:
        state = attempt.restore({"x": np.zeros(4)})
        attempts.append(attempt.slices)
        if len(attempts) == 1:
            reported[1] = 2
            attempt.step_done(state, Late(gate))
            attempt.settle()

    with (
        mock.patch.object(manager_module, "starting_of", return_value=lambda: reported),
        elastic.Manager(
            options=options(health_timeout=0.1, probe_timeout=3.0),
            slice_key=slice_of,
            console=False,
            on_event=events.append,
            probe=probe,
        ) as manager,
    ):
        try:
            manager.run(train_once)
        finally:
            gate.open()
    assert attempts == [(0, 1, 2), (0, 2)]
    [error] = [event for event in events if event.kind == "elastic.error"]
    assert "slice 1: it was lost, and its replacement starts" in (error.reason or "")
    assert "slice.down" not in [event.kind for event in events]


@check
def slices_that_are_all_replaced_in_a_step_count_as_lost_once(directory: Path) -> None:
    del directory
    gate = Gate()
    reported: dict[int, int] = {}
    attempts: list[tuple[int, ...]] = []
    events: list[Event] = []

    def probe(_devices: Sequence[jax.Device]) -> None:
        if reported:
            gate.wait()

    def hear(event: Event) -> None:
        events.append(event)
        if event.kind == "elastic.wait.started":
            gate.open()

    def train_once(attempt: elastic.Attempt) -> int:
        state = attempt.restore({"x": np.zeros(4)})
        attempts.append(attempt.slices)
        if len(attempts) == 1:
            reported.update({0: 2, 1: 2, 2: 2})
            attempt.step_done(state, Late(gate))
            attempt.settle()
        return len(attempts)

    chosen = options(
        elastic_min_slice_count=-1, health_timeout=0.1, probe_timeout=2.0, flap_limit=2
    )
    with (
        mock.patch.object(manager_module, "starting_of", return_value=lambda: reported),
        elastic.Manager(
            options=chosen, slice_key=slice_of, console=False, on_event=hear, probe=probe
        ) as manager,
    ):
        try:
            assert manager.run(train_once) == 2
        finally:
            gate.open()
    assert attempts == [(0, 1, 2)] * 2
    kinds = [event.kind for event in events]
    assert kinds.count("slice.awaited") == 3
    assert "slice.left_out" not in kinds


@check
def silent_slices_that_do_not_start_are_not_called_the_end_of_the_proxy(directory: Path) -> None:
    del directory
    gate = Gate()
    connected: list[Sequence[jax.Device]] = []

    def connect() -> Sequence[jax.Device]:
        gate.open()
        connected.append(jax.devices())
        return connected[-1]

    def probe(_devices: Sequence[jax.Device]) -> None:
        if not connected:
            gate.wait()

    try:
        chosen = options(probe_timeout=0.1, elastic_max_retries=1)
        with pytest.raises(elastic.ElasticRuntimeError) as raised:
            run(chosen, probe, lambda _: None, reconnect=connect)
        assert "Elastic attempt 1 failed: no slice answers within 0.1 s" in str(raised.value)
        assert not connected
        # With another attempt, a new proxy is connected.
        chosen = options(probe_timeout=0.5, elastic_max_retries=100)
        assert run(chosen, probe, lambda _: None, reconnect=connect) == 3
        assert connected
    finally:
        gate.open()


@check
def a_slice_that_starts_does_not_hide_that_the_proxy_hangs(directory: Path) -> None:
    del directory
    gate = Gate()
    connected: list[Sequence[jax.Device]] = []
    events: list[Event] = []

    def connect() -> Sequence[jax.Device]:
        gate.open()
        connected.append(jax.devices())
        return connected[-1]

    chosen = options(probe_timeout=0.5, elastic_max_retries=100, elastic_timeout_seconds=60.0)
    try:
        with mock.patch.object(manager_module, "starting_of", return_value=lambda: {1: 1}):
            assert run(chosen, lambda _: gate.wait(), events.append, reconnect=connect) == 3
    finally:
        gate.open()
    assert connected
    kinds = [event.kind for event in events]
    assert "slice.awaited" in kinds[: kinds.index("elastic.reconnected")]


@check
def a_slice_that_starts_alone_says_nothing_of_the_proxy(directory: Path) -> None:
    del directory
    silent = Answers(good=(), bad={0: "no answer", 1: "no answer"}, silent=(0, 1), dead=True)
    watch = SliceWatch({0: [], 1: [], 2: []}, options(), lambda _: None, lambda _: None)
    watch.note(silent.excusing([0]))
    assert not watch.dead
    assert watch.silent == {1}
    assert watch.starting == {0}
    watch.close()


@check
def only_silent_slices_are_excused(directory: Path) -> None:
    del directory
    found = Answers(
        good=(0,), bad={1: "no answer", 2: "DATA_LOSS"}, silent=(1,), dead=False
    ).excusing({1, 2})
    # One that answers with an error does not start.
    assert (found.good, found.bad, found.silent) == ((0,), {2: "DATA_LOSS"}, ())
    assert (found.starting, found.replaced) == ((1,), ())
    silent = Answers(good=(), bad={0: "no answer"}, silent=(0,), dead=True)
    assert silent.excusing(()) == silent
    assert not silent.excusing((0,)).dead
    assert silent.excusing((0,), (0, 1)).replaced == (0,)
    # Another one neither answers nor starts.
    two = Answers(good=(), bad={0: "no answer", 1: "no answer"}, silent=(0, 1), dead=True)
    assert two.excusing((0,)).dead
    assert not two.excusing((0, 1)).dead
