"""Holdings and marks of the timeline, from recorded decisions."""

from __future__ import annotations

from shared_pathways_service.web.slice_history import history_rows
from tests.pure import leaves_nothing_behind
from tests.web.samples import decision

__all__ = ["leaves_nothing_behind"]


def test_a_holding_is_known_from_its_end_alone() -> None:
    data = {"user": "ada", "instance_type": "tpuv6e:2x2", "virtual_index": 0}
    freed = decision(100, "slice.freed", "t", slice="slice-0", duration_s=40.0, data=data)
    rows = history_rows([freed])
    [holding] = rows["holdings"]
    assert (holding["start"], holding["end"], holding["id"]) == (60.0, 100.0, 100)
    assert (holding["slice"], holding["tenant"], holding["user"]) == ("slice-0", "t", "ada")
    assert holding["text"] == "t gave back slice-0 (its slice 0) after 40 s"
    assert rows["marks"] == []


def test_losses_moves_and_preemptions_are_marked_on_their_slices() -> None:
    rows = history_rows(
        [
            decision(10, "slice.lost", slice="slice-0", reason="worker 0 is gone"),
            decision(11, "slice.replaced", "t", slice="slice-1"),
            decision(20, "slice.unplaced", "t", slice="slice-1", duration_s=9.0),
            decision(20, "tenant.preempted", "t"),
            decision(30, "slice.draining", slice="slice-2"),
            decision(40, "slice.freed", "u", slice="slice-2", duration_s=1.0),
        ]
    )
    marks = [(one["slice"], one["mark"]) for one in rows["marks"]]
    assert marks == [
        ("slice-0", "lost"), ("slice-1", "moved"), ("slice-1", "preempted"), ("slice-2", "draining")
    ]  # fmt: skip
    assert len(rows["holdings"]) == 2
    assert "worker 0 is gone" in rows["marks"][0]["text"]
