"""Who held which slice when, from the recorded decisions of a resource manager.

The decision that ends a holding has the holding's duration. Holdings that go on are not among the
decisions: the page takes them from the service's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import decision_of, decision_sentence

__all__ = ["KINDS", "history_rows"]

#: Decisions with which a tenant's holding of a slice ends.
_ENDS = (DecisionKind.FREED, DecisionKind.UNPLACED)
#: Decisions that are marked on the slice, with the word for the mark.
_MARKS: Mapping[str, str] = {
    DecisionKind.LOST: "lost",
    DecisionKind.REPLACED: "moved",
    DecisionKind.CORDONED: "cordoned",
    DecisionKind.DRAINING: "draining",
    DecisionKind.PREEMPTED: "preempted",
}
#: The kinds that `history_rows` uses.
KINDS = (*_ENDS, *_MARKS)
#: Seconds between a preemption and the end of the holdings that it ended: one event of the core.
_SAME_EVENT_S = 0.5


def history_rows(decisions: Iterable[pb.EventMessage]) -> dict[str, list[dict[str, Any]]]:
    """Returns ``holdings`` and ``marks``; times are seconds since the epoch.

    Args:
      decisions: Of `KINDS`, oldest first.
    """
    found = [(one, datetime.fromisoformat(one.time).timestamp()) for one in decisions]
    preempted: dict[str, list[float]] = {}
    for one, at in found:
        if one.kind == DecisionKind.PREEMPTED:
            preempted.setdefault(one.tenant, []).append(at)
    holdings, marks = [], []
    for one, at in found:
        if one.kind in _ENDS and one.HasField("duration_s"):
            holdings.append(_holding(one, at))
            times = preempted.get(one.tenant, ())
            if any(abs(at - other) < _SAME_EVENT_S for other in times):
                marks.append(_mark(one, at, "preempted"))
        elif one.slice and one.kind in _MARKS:
            marks.append(_mark(one, at, _MARKS[one.kind]))
    return {"holdings": holdings, "marks": marks}


def _holding(one: pb.EventMessage, at: float) -> dict[str, Any]:
    told = decision_of(one)
    return {
        "id": one.sequence,
        "slice": one.slice,
        "instance_type": told.instance_type,
        "tenant": one.tenant,
        "user": told.user,
        "team": told.team,
        "start": at - one.duration_s,
        "end": at,
        "text": decision_sentence(one),
    }


def _mark(one: pb.EventMessage, at: float, word: str) -> dict[str, Any]:
    return {
        "id": one.sequence,
        "slice": one.slice,
        "mark": word,
        "at": at,
        "text": decision_sentence(one),
    }
