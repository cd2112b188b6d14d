"""The book finds what it is there to find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared_pathways_service.scheduling.book.decisions import Decision
from stress.manager_kills.book import Book, Hold, TenantMessage

ADA = Hold("ada", 0, "slice-0", 1)


def _of(kind: str, hold: Hold, reason: str = "") -> Decision:
    return Decision(
        time=0.0,
        kind=kind,
        tenant=hold.tenant,
        slice=hold.slice_id,
        virtual_index=hold.index,
        generation=hold.generation,
        reason=reason,
    )


def _tenant(kind: str, name: str = "ada", reason: str = "") -> Decision:
    return Decision(time=0.0, kind=kind, tenant=name, reason=reason)


STARTS = (_tenant("tenant.running"), _of("slice.placed", ADA))
DRAINED = "slice-0 is drained by an operator"


def _book(decisions: Sequence[Decision], *leaving: str) -> Book:
    book = Book()
    for name in leaving:
        book.leaves(name)
    for number, one in enumerate(decisions, start=1):
        book.decide(number, one)
    return book


def test_a_whole_life_has_no_fault() -> None:
    moved = Hold("ada", 0, "slice-1", 2)
    preempted = "preempted by eve@laptop of priority 1"
    life = (
        _tenant("tenant.queued"),
        *STARTS,
        _of("slice.unplaced", ADA, DRAINED),
        _of("slice.replaced", moved),
        _of("slice.unplaced", moved, preempted),
        _tenant("tenant.preempted", reason=preempted),
        _tenant("tenant.released"),
    )
    book = _book(life, "ada")
    for what, hold in (("queued", None), ("placed", ADA), ("running", None), ("unplaced", ADA)):
        book.receive(TenantMessage(tenant="ada", what=what, hold=hold))
    book.receive(TenantMessage(tenant="ada", what="queued"))
    assert not book.check({}, {})
    assert not book.close()


@pytest.mark.parametrize(
    ("decisions", "fault"),
    [
        ((*STARTS, _of("slice.placed", Hold("eve", 0, "slice-0", 2))), "is placed while"),
        ((*STARTS, _of("slice.placed", Hold("ada", 0, "slice-1", 2))), "and is on 1"),
        ((*STARTS, _of("slice.placed", Hold("eve", 0, "slice-1", 1))), "generation 1 after 1"),
        ((*STARTS, *[_of("slice.unplaced", ADA, DRAINED)] * 2), "ends, held is None"),
        ((*STARTS, _of("slice.unplaced", ADA, "did not report")), "for no good cause"),
        ((*STARTS, _tenant("tenant.expired", reason="too late")), "ada was given up: too late"),
        ((*STARTS, _tenant("tenant.running")), "starts twice"),
        ((_tenant("tenant.preempted"),), "did not run"),
        ((_tenant("tenant.released"), *STARTS), "after its tenant.released"),
        ((_tenant("tenant.released"), _tenant("tenant.released")), "after its tenant.released"),
        ((_tenant("tenant.adopted"),), "tenant.adopted of ada"),
    ],
)
def test_it_finds_what_a_history_cannot_be(decisions: Sequence[Decision], fault: str) -> None:
    (found, *_) = _book(decisions).faults
    assert fault in found


def test_it_finds_a_gap() -> None:
    book = _book(STARTS)
    book.decide(4, _tenant("tenant.released"))
    assert book.faults == ["decision 4 follows 2"]


@pytest.mark.parametrize(
    ("what", "hold", "fault"),
    [
        ("placed", Hold("ada", 0, "slice-1", 1), "granted was"),
        ("placed", Hold("ada", 0, "slice-0", 2), "granted was None"),
        ("unplaced", ADA, "not so: None"),
        ("refused", None, "knows nothing"),
    ],
)
def test_it_finds_messages_that_contradict_the_history(
    what: str, hold: Hold | None, fault: str
) -> None:
    book = _book(STARTS)
    book.receive(TenantMessage(tenant="ada", what=what, hold=hold))
    (found,) = book.faults
    assert fault in found


def test_it_finds_a_preemption_that_is_not_in_the_history() -> None:
    book = _book(STARTS)
    for what in ("running", "queued"):
        book.receive(TenantMessage(tenant="ada", what=what))
    assert book.faults == ["ada received more preemptions than 0"]


def test_it_finds_differing_and_missing_tenants() -> None:
    book = _book(STARTS, "ada")
    assert book.check({"ada": {ADA}}, {"slice-0": ADA}) == []
    assert len(book.check({"ada": set()}, {"slice-0": ADA})) == 1
    assert len(book.check({"ada": {ADA}}, {})) == 1
    assert len(book.check({}, {"slice-0": ADA})) == 1
    assert book.close() == ["ada has left, of which the history knows nothing"]
