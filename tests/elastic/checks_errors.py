"""Checks of whose an error is, of slices that hang, and of a proxy that dies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from harness.elastic.example_training import GONE, STEPS, assert_same, options, slice_of, train
from shared_pathways_service import elastic
from shared_pathways_service.elastic.run_ledger import read_ledger
from shared_pathways_service.events import Event
from shared_pathways_service.testing.faults import fail_at, hang, lie, on_event
from tests.elastic.raised import raised_by
from tests.elastic.registry import check


@check
def an_unclear_error_with_all_slices_well_is_the_users(directory: Path) -> None:
    error = raised_by(
        jax.errors.JaxRuntimeError, options(), lie(6, "INTERNAL: my bug"), directory=directory
    )
    assert str(error) == "INTERNAL: my bug"
    told = list(read_ledger(directory))
    [judged] = [event for event in told if event.kind == "elastic.error"]
    assert (judged.data["verdict"], judged.data["decision"]) == ("user", "raise")
    assert sum(event.kind == "elastic.attempt.started" for event in told) == 1


@check
def an_unclear_error_with_a_slice_that_is_gone_is_retried_and_then_told_twice(
    directory: Path,
) -> None:
    error = raised_by(
        jax.errors.JaxRuntimeError,
        options(),
        # Down, and not noticed by training before the error that looks like anybody's.
        fail_at(6, 1, down_for=GONE),
        lie(6, "INTERNAL: at 0x7f01 of 3"),
        lie(9, "INTERNAL: at 0x8e02 of 4"),
        directory=directory,
        back_at=[7],
    )
    assert str(error) == "INTERNAL: at 0x8e02 of 4"
    assert isinstance(error.__cause__, jax.errors.JaxRuntimeError)
    assert str(error.__cause__) == "INTERNAL: at 0x7f01 of 3"
    assert error.__cause__.__traceback__ is not None
    judged = [e for e in read_ledger(directory) if e.kind == "elastic.error"]
    assert [event.data["decision"] for event in judged] == ["retry", "raise"]


@check
def a_bug_of_the_user_is_never_retried(directory: Path) -> None:
    def bug(step: int) -> None:
        if step == 6:
            raise ZeroDivisionError("mine")

    error = raised_by(ZeroDivisionError, options(), directory=directory, pause=bug)
    assert str(error) == "mine"
    kinds = [event.kind for event in read_ledger(directory)]
    assert kinds.count("elastic.attempt.started") == 1
    assert not [kind for kind in kinds if kind.startswith("slice.")]


@check
def a_loss_behind_an_error_of_a_library_is_found(directory: Path) -> None:
    raised: list[int] = []

    def wrapped(step: int) -> None:
        if step == 6 and not raised:
            raised.append(step)
            try:
                raise jax.errors.JaxRuntimeError("DATA_LOSS: virtual slice 2 was lost")
            except jax.errors.JaxRuntimeError as error:
                raise RuntimeError("the save failed") from error

    done = train(options(), directory=directory, pause=wrapped)
    assert len(done.attempts) == 2
    assert done.first("elastic.error").data["slices"] == "2"


@check
def a_slice_that_hangs_is_down_after_its_deadline(directory: Path) -> None:
    chosen = options(health_every=1, health_timeout=0.5, probe_timeout=4.0, snapshot_period=2)
    done = train(
        chosen,
        on_event(hang(1, for_s=GONE), "elastic.step", 8),
        directory=directory,
        back_at=[11],
    )
    assert done.attempts[:2] == [(0, 1, 2), (0, 2)]
    assert done.attempts[-1] == (0, 1, 2)
    down = done.first("slice.down")
    assert down.slice == 1
    assert "no answer within 4 s" in (down.reason or "")
    assert len([e for e in done.all("slice.down") if e.slice != 1]) == 0
    # What could be saved was, before the attempt was given up.
    assert 8 in [event.step for event in done.all("checkpoint.saved")]
    assert done.result["count"] == STEPS


class Proxy:
    """A proxy that is gone or not, as the manager's probes see it."""

    def __init__(self) -> None:
        self.dead = False
        self.connected = 0

    def probe(self, devices: Sequence[jax.Device]) -> None:
        if self.dead:
            raise jax.errors.JaxRuntimeError(
                "UNAVAILABLE: Connection to IFRT proxy server was terminated: Socket closed"
            )

    def connect(self) -> Sequence[jax.Device]:
        self.dead = False
        self.connected += 1
        return jax.devices()


@check
def a_proxy_that_dies_is_replaced(directory: Path) -> None:
    for others, origin in (({"snapshot_period": 2}, "snapshot"), ({}, "checkpoint")):
        proxy = Proxy()
        events: list[Event] = []
        steps: list[int] = []

        def train_once(
            attempt: elastic.Attempt, proxy: Proxy = proxy, steps: list[int] = steps
        ) -> None:
            state = attempt.restore({"x": np.zeros(4)})
            while attempt.progress.step < 12:
                if attempt.progress.step == 9 and not proxy.connected:
                    proxy.dead = True
                    proxy.probe(())
                state = {"x": state["x"] + 1}
                attempt.step_done(state, state["x"][0])
            steps.append(int(state["x"][0]))

        with elastic.Manager(
            options=options(**others),
            directory=directory / origin,
            slice_key=slice_of,
            console=False,
            on_event=events.append,
            probe=proxy.probe,
            reconnect=proxy.connect,
        ) as manager:
            manager.run(train_once)
        assert proxy.connected == 1
        assert steps == [12]
        [event] = [event for event in events if event.kind == "elastic.error"]
        assert event.data["verdict"] == "proxy"
        restored = [event for event in events if event.kind == "elastic.restored"]
        assert restored[1].data["origin"] == origin
        assert restored[1].step == {"snapshot": 8, "checkpoint": 5}[origin]


@check
def without_a_way_to_connect_anew_a_dead_proxy_ends_it(directory: Path) -> None:
    proxy = Proxy()

    def train_once(attempt: elastic.Attempt) -> None:
        attempt.restore({"x": np.zeros(4)})
        proxy.dead = True
        proxy.probe(())

    with (
        elastic.Manager(
            options=options(),
            directory=directory,
            slice_key=slice_of,
            console=False,
            probe=proxy.probe,
        ) as manager,
        pytest.raises(jax.errors.JaxRuntimeError, match="UNAVAILABLE"),
    ):
        manager.run(train_once)


@check
def a_failure_within_a_save_costs_that_save_only(directory: Path) -> None:
    done = train(options(), fail_at(10, 1, down_for=GONE), directory=directory, back_at=[12])
    assert done.result["count"] == STEPS
    assert_same(done.result, train(options()).result, exactly=False)
