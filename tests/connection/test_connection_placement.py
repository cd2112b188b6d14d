"""Placement after the start: waits, preemption, losses and refusals."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

from shared_pathways_service import (
    Event,
    PlacementTimeout,
    SlicesTaken,
)
from shared_pathways_service.agent.journal import Journal
from tests.agent.support import DEADLINE_S, eventually
from tests.connection.bench import TYPE, Bench

# ---- placed later


def test_a_connection_may_be_ready_before_its_placement(bench: Bench) -> None:
    bench.script = {"place": False}

    def serve(event: Event) -> None:
        if event.kind == "connect.create.done":
            bench.home.tell(bench.session, "proxy.serving")

    with bench.connect(wait="ready", queue_timeout=60, on_event=serve) as it:
        assert not it.status().placed
        with pytest.raises(PlacementTimeout) as caught:
            it.wait_until_placed(timeout=0.2)
        assert (caught.value.placed, caught.value.wanted) == (0, 2)
        bench.home.tell(bench.session, "tenant.queued", "0 free", position=1, holders="ada: 2")
        eventually(lambda: it.status().position == 1, "the queue")
        assert [s.state for s in it.slices] == ["queued", "queued"]
        bench.home.tell(bench.session, "tenant.running", placed=2, wanted=2)
        it.wait_until_placed()
        assert it.status().placed


def test_a_preempted_connection_waits_until_its_slices_return(bench: Bench) -> None:
    def placed(generation: int) -> dict[str, Any]:
        return {"slice_id": "slice-7", "generation": generation, "instance_type": TYPE}

    with bench.connect() as it:
        it.wait_until_placed(timeout=0)
        for index in (0, 1):
            data = placed(index + 1)
            why = "preempted by eve"
            bench.home.tell(bench.session, "slice.unplaced", why, virtual_index=index, **data)
        bench.home.tell(bench.session, "tenant.preempted", "preempted by eve")
        bench.home.tell(bench.session, "tenant.queued", "0 free", position=1, holders="eve: 2")
        # (The agent notes a state in its journal before it takes the next news in.)
        eventually(lambda: it.status().position == 1, "the queue")
        assert (it.status().state, it.status().placed) == ("preempted", False)
        assert "preempted" in repr(it)
        assert "<td>preempted</td>" in it._repr_html_()
        [entry] = Journal(bench.state / "journal").entries()
        assert entry.state == "preempted"
        with pytest.raises(PlacementTimeout) as caught:
            it.wait_until_placed(timeout=0.2)
        assert (caught.value.placed, caught.value.wanted) == (0, 2)
        assert caught.value.holders == ("eve: 2",)

        waiting = concurrent.futures.ThreadPoolExecutor(1)
        with waiting:
            back = waiting.submit(it.wait_until_placed, DEADLINE_S)
            bench.home.tell(bench.session, "slice.placed", virtual_index=0, **placed(3))
            eventually(lambda: it.status().slices[0] == "placed", "one of two slices")
            # One of two is none: what a gang lacks is waited for.
            assert not back.done()
            assert it.status().state == "preempted"
            bench.home.tell(bench.session, "slice.placed", virtual_index=1, **placed(4))
            bench.home.tell(bench.session, "tenant.running", placed=2, wanted=2)
            back.result(DEADLINE_S)
        assert (it.status().state, it.status().placed) == ("serve", True)
        assert "preempted" not in it._repr_html_()


def test_the_wait_for_placement_includes_lost_slices(bench: Bench) -> None:
    with bench.connect() as it:
        lost: dict[str, Any] = {"virtual_index": 1, "slice_id": "slice-1", "generation": 2}
        bench.home.tell(bench.session, "slice.unplaced", "its worker has gone", **lost)
        eventually(lambda: it.status().slices[1] == "unplaced", "the loss")
        assert it.status().state == "serve"
        with pytest.raises(PlacementTimeout) as caught:
            it.wait_until_placed(timeout=0.2)
        assert (caught.value.placed, caught.value.wanted) == (1, 2)
        bench.home.tell(bench.session, "slice.placed", **{**lost, "generation": 3})
        it.wait_until_placed(timeout=DEADLINE_S)


def test_slices_whose_executors_start_are_known_until_they_serve(bench: Bench) -> None:
    def told(generation: int, **more: Any) -> dict[str, Any]:
        return {"virtual_index": 1, "slice_id": "slice-7", "generation": generation, **more}

    with bench.connect() as it:
        it.wait_until_placed(timeout=0)
        assert it.status().starting == {}
        bench.home.tell(bench.session, "slice.unplaced", "killed", **told(2))
        bench.home.tell(bench.session, "slice.placed", **told(3, starting=True))
        eventually(lambda: it.status().starting == {1: 3}, "the start")
        # (One of the placement before comes late.)
        bench.home.tell(bench.session, "executor.started", **told(2))
        bench.home.tell(bench.session, "slice.unplaced", "killed", **told(3))
        eventually(lambda: it.status().starting == {}, "the end of the placement")
        bench.home.tell(bench.session, "slice.placed", **told(4, starting=True))
        eventually(lambda: it.status().starting == {1: 4}, "the next start")
        bench.home.tell(bench.session, "executor.started", **told(3))
        bench.home.tell(bench.session, "executor.started", **told(4))
        eventually(lambda: it.status().starting == {}, "the executors")
        assert it.status().slices[1] == "placed"


def test_a_refusal_after_ready_is_reported_once(bench: Bench) -> None:
    bench.script = {"place": False}

    def serve(event: Event) -> None:
        if event.kind == "connect.create.done":
            bench.home.tell(bench.session, "proxy.serving")

    with bench.connect(wait="ready", queue_timeout=1, on_event=serve) as it:
        bench.home.tell(bench.session, "tenant.refused", kind="slices_taken", message="too long")
        with pytest.raises(SlicesTaken, match="too long"):
            it.wait_until_placed()
