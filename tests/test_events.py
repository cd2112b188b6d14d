"""Events: what every sink gets."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import shared_pathways_service
from shared_pathways_service.events import Event, OtherEvent, rfc3339
from shared_pathways_service.events.manager_events import (
    ManagerRecovered,
    ReservationMade,
    SliceReady,
    SliceUncordoned,
    TenantDisconnected,
)
from shared_pathways_service.events.recorded_decisions import DecisionKind, RecordedDecision
from shared_pathways_service.events.session import ProxyExited, TunnelBroken
from shared_pathways_service.events.supervisor import ClientJoined, ProcessEnded, SliceDisturbed
from shared_pathways_service.events.tenants import (
    SlicePlaced,
    TenantGone,
    TenantQueued,
    TenantRefused,
)
from shared_pathways_service.events.training import (
    AttemptFailed,
    AttemptStarted,
    RunStarted,
    SnapshotTaken,
    TrainingStep,
)

PACKAGE = Path(shared_pathways_service.__file__).parent


def _names(cls: type[Event]) -> set[str]:
    names = {cls.kind} if cls.kind else set()
    return names.union(*map(_names, cls.__subclasses__()))


for _module in pkgutil.iter_modules([str(PACKAGE / "events")]):
    importlib.import_module(f"shared_pathways_service.events.{_module.name}")
#: Names of all events and decisions, and what they begin with.
NAMES = {*_names(Event), *DecisionKind}
PREFIXES = {name[: end.start() + 1] for name in NAMES for end in re.finditer(r"\.", name)}

#: The flat form that the first release wrote, with the object that it is read as.
FLAT: list[tuple[str, dict[str, str | int | float | bool | None], Event]] = [
    (
        "tenant.queued",
        {"position": 2, "holders": "ada@a: 1 x T\nbob@b: 1 x T"},
        TenantQueued(position=2, holders=("ada@a: 1 x T", "bob@b: 1 x T")),
    ),
    (
        "tenant.refused",
        {
            "kind": "slices_taken",
            "message": "no",
            "wanted": '{"T": 2}',
            "free": '{"T": 1}',
            "holders": "ada@a: 1 x T",
            "position": 1,
            "types": "T\nU",
            "spares": '{"T": 1}',
        },
        TenantRefused(
            refusal="slices_taken",
            message="no",
            wanted={"T": 2},
            free={"T": 1},
            holders=("ada@a: 1 x T",),
            position=1,
            types=("T", "U"),
            spares={"T": 1},
        ),
    ),
    (
        "slice.placed",
        {"virtual_index": 0, "slice_id": "slice-0", "generation": 7, "instance_type": "T"},
        SlicePlaced(virtual_index=0, slice_id="slice-0", generation=7, instance_type="T"),
    ),
    (
        "tenant.disconnected",
        {"ttl_s": 30.0},
        TenantDisconnected(ttl_s=30.0),
    ),
    ("tenant.gone", {"slices": 2}, TenantGone(slices=2)),
    (
        "slice.ready",
        {"instance_type": "T", "ready": 1, "count": 2},
        SliceReady(instance_type="T", ready=1, count=2),
    ),
    (
        "slice.uncordoned",
        {"instance_type": "T", "state": "ready"},
        SliceUncordoned(instance_type="T", state="ready"),
    ),
    (
        "rm.recovered",
        {"tenants": 1, "slices_unheard": 0},
        ManagerRecovered(tenants=1, slices_unheard=0),
    ),
    (
        "reservation.made",
        {"instance_type": "T", "count": 2},
        ReservationMade(instance_type="T", count=2),
    ),
    (
        "process.ended",
        {"name": "worker-0", "exit_code": -9, "restarts": 1},
        ProcessEnded(name="worker-0", exit_code=-9, restarts=1),
    ),
    ("client.joined", {"who": "agent of a"}, ClientJoined(who="agent of a")),
    ("slice.disturbed", {"hold_s": 0.0, "workers": 2}, SliceDisturbed(hold_s=0.0, workers=2)),
    (
        "elastic.run.started",
        {"run_name": None, "enabled": True, "slices": 3, "pid": 7},
        RunStarted(enabled=True, slices=3, pid=7),
    ),
    (
        "elastic.attempt.started",
        {"attempt": 1, "cause": "start", "slices": "0,1,2", "slice_count": 3},
        AttemptStarted(attempt=1, cause="start", slices=(0, 1, 2), slice_count=3),
    ),
    (
        "elastic.error",
        {"verdict": "user", "decision": "raise", "slices": ""},
        AttemptFailed(verdict="user", decision="raise"),
    ),
    (
        "elastic.step",
        {"loss": 0.5, "slice_count": 3, "down_events": 0, "first": False},
        TrainingStep(loss=0.5, slice_count=3, down_events=0, first=False),
    ),
    (
        "snapshot.taken",
        {"blocked_s": 0.1, "bytes": 8, "where": "peer"},
        SnapshotTaken(blocked_s=0.1, bytes=8, where="peer"),
    ),
    (
        "proxy.exited",
        {"exit_code": -9, "log_tail": "a\nb", "report": '{"kind": "lost"}'},
        ProxyExited(exit_code=-9, log_tail=("a", "b"), report={"kind": "lost"}),
    ),
    (
        "tunnel.broken",
        {"error": '{"type": "AccessDenied"}', "final": True},
        TunnelBroken(error={"type": "AccessDenied"}, final=True),
    ),
]


@pytest.mark.parametrize(("kind", "data", "event"), FLAT, ids=[kind for kind, _, _ in FLAT])
def test_the_flat_form_is_that_of_the_first_release(
    kind: str, data: dict[str, str | int | float | bool | None], event: Event
) -> None:
    assert Event.of(kind, data=data) == event
    assert event.kind == kind
    assert event.data == data
    assert Event.from_dict(json.loads(event.to_json())) == event


def test_what_an_older_version_left_empty_has_its_default() -> None:
    empty = {"position": None, "holders": "", "wanted": "", "free": "not JSON"}
    assert Event.of("tenant.queued", data=empty) == TenantQueued()
    assert Event.of("slice.placed", data={"virtual_index": "0"}) == SlicePlaced()
    assert Event.of("proxy.exited", data={"exit_code": 3.0}) == ProxyExited(exit_code=3)


def test_what_a_newer_version_adds_is_kept() -> None:
    event = Event.of("slice.placed", data={"virtual_index": 1, "rack": "r7"})
    assert isinstance(event, SlicePlaced)
    assert event.data == {"virtual_index": 1, "slice_id": "", "rack": "r7"}
    new = Event.of("slice.painted", source="rm", data={"colour": "red"})
    assert isinstance(new, OtherEvent)
    assert (new.kind, new.data) == ("slice.painted", {"colour": "red"})
    assert Event.from_dict(new.to_dict()) == new


def test_equal_events_may_have_different_times() -> None:
    assert SlicePlaced(virtual_index=0, time="2026-01-01T00:00:00Z") == SlicePlaced(virtual_index=0)
    assert SlicePlaced(virtual_index=0) != SlicePlaced(virtual_index=1)


@pytest.mark.parametrize("kind", ["slice.placed", "tenant.praised"])
def test_a_decision_has_the_fields_of_decisions_whatever_its_name(kind: str) -> None:
    flat = {
        "kind": kind,
        "time": "2026-01-01T00:00:00Z",
        "tenant": "ada",
        "data": {"user": "a", "generation": 3, "rack": "r7"},
    }
    decision = RecordedDecision.from_dict(flat)
    assert (decision.kind, decision.tenant, decision.user) == (kind, "ada", "a")
    assert decision.data == flat["data"]


def spelled_names(path: Path) -> Iterator[str]:
    """Yields names of events in a module: whole ones, and beginnings of f-strings that make one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Constant(value=str(text)) if text in NAMES:
                yield text
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text in PREFIXES:
                yield text


def test_only_the_events_folder_spells_names_of_events() -> None:
    spelled = [
        f"{path.relative_to(PACKAGE)}: {text!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith("events/")
        for text in spelled_names(path)
    ]
    assert not spelled, "use the class of the event"


@pytest.mark.parametrize(
    "source",
    ['kind = "slice.placed"', 'kind = f"slice.{state}"', 'match kind:\n  case "rm.started": pass'],
)
def test_a_name_is_found_however_it_is_spelled(source: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(spelled_names(path))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1e12, "9999-12-31T23:59:59.000Z"),
        (float("inf"), "9999-12-31T23:59:59.000Z"),
        (-1e12, "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_beyond_the_calendar_is_clamped(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text
