"""The checker of partitions refuses every history that breaks a promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stress.partitions.checker import check
from stress.partitions.history import (
    Belief,
    Cause,
    Fault,
    History,
    Life,
    Recorded,
    Settled,
    Times,
)

TIMES = Times(beat_s=0.5, hung_s=5.0, ttl_s=12.0, late_s=3.0)
HUNG = "worker 0 of slice-0 is hung: no beat for 5 s"


def _of(kind: str, at: float, tenant: str, slice_id: str, generation: int) -> Recorded:
    return Recorded(
        at=at, kind=kind, tenant=tenant, slice_id=slice_id, index=0, generation=generation
    )


def _lost(at: float, reason: str = HUNG) -> Recorded:
    return Recorded(at=at, kind="slice.lost", slice_id="slice-0", reason=reason)


def _placed(at: float, tenant: str, slice_id: str, generation: int) -> Belief:
    return Belief(at=at, tenant=tenant, index=0, slice_id=slice_id, generation=generation)


def _fault(cause: Cause, other: str, began: float, ended: float) -> Fault:
    return Fault(cause=cause, host="rm", other=other, began=began, ended=ended)


def _history(
    faults: Sequence[Fault] = (),
    decisions: Sequence[Recorded] = (),
    beliefs: Sequence[Belief] = (),
    ended: Sequence[tuple[float, str]] = (),
    *,
    settled_at: float | None = None,
) -> History:
    """Ada holds slice-0 from 101 on; `faults` and so on are what happens then."""
    hosts = {"slice-0": "w0", "slice-1": "w1", "ada": "p0", "bob": "p1"}
    lives = [Life(at=100.0, host=host, name=name, what="started") for name, host in hosts.items()]
    lives += [Life(at=at, host=hosts[name], name=name, what="ended") for at, name in ended]
    healed = max([110.0, *(fault.ended for fault in faults)])
    at = healed + 3.0 if settled_at is None else settled_at
    return History(
        times=TIMES,
        faults=list(faults),
        decisions=[_of("slice.placed", 101.0, "ada", "slice-0", 1), *decisions],
        beliefs=[_placed(101.1, "ada", "slice-0", 1), *beliefs],
        lives=lives,
        settled=[Settled(began=105.0, healed=healed, at=at)],
    )


def _moved() -> History:
    """The link of slice-0's worker is silent for 10 s, and Ada is moved to slice-1."""
    return _history(
        [_fault("silent", "w0", 110.0, 120.0)],
        [
            _lost(115.0),
            _of("slice.unplaced", 115.0, "ada", "slice-0", 1),
            _of("slice.replaced", 115.0, "ada", "slice-1", 2),
        ],
        [Belief(at=115.1, tenant="ada", index=0), _placed(115.1, "ada", "slice-1", 2)],
    )


def _expired() -> History:
    """Ada's proxy is cut off for 20 s by a reset, and Bob gets her slice."""
    return _history(
        [_fault("reset", "p0", 110.0, 130.0)],
        [
            Recorded(at=122.5, kind="tenant.expired", tenant="ada"),
            _of("slice.freed", 122.5, "ada", "slice-0", 1),
            _of("slice.placed", 122.6, "bob", "slice-0", 2),
        ],
        [_placed(122.7, "bob", "slice-0", 2)],
        [(132.0, "ada")],
    )


@pytest.mark.parametrize("make", [_history, _moved, _expired])
def test_histories_that_keep_every_promise_pass(make: Callable[[], History]) -> None:
    assert check(make()) == []


def _changed(history: History, of: str, index: int, **changes: Any) -> History:
    """Returns a history with one entry of a list changed."""
    entries = list(getattr(history, of))
    entries[index] = dataclasses.replace(entries[index], **changes)
    changed: dict[str, Any] = {of: entries}
    return dataclasses.replace(history, **changed)


def _without(history: History, of: str, index: int) -> History:
    entries = list(getattr(history, of))
    del entries[index]
    changed: dict[str, Any] = {of: entries}
    return dataclasses.replace(history, **changed)


def _later(history: History) -> History:
    return _changed(history, "settled", 0, at=150.0)


@pytest.mark.parametrize(
    ("history", "violation"),
    [
        # One holder at a time, and generations that grow.
        (_without(_expired(), "decisions", 2), "is given to bob while ada holds it"),
        (_changed(_moved(), "decisions", 3, generation=1), "generation 1 of ada follows 1"),
        (
            _history(beliefs=[_placed(102.0, "ada", "slice-0", 1)]),
            "ada hears of generation 1 of slice 0 after 1",
        ),
        # No loss without a cause, before its time, or for a short outage.
        (_without(_moved(), "faults", 0), "without a fault of its worker's link"),
        (_changed(_moved(), "faults", 0, other="w1"), "without a fault of its worker's link"),
        (_changed(_moved(), "faults", 0, cause="loss10"), "without a fault of its worker's link"),
        (_changed(_moved(), "decisions", 1, at=114.3), "is lost (worker 0 of slice-0 is hung: "),
        (_changed(_moved(), "decisions", 1, at=114.3), "before its time"),
        (_changed(_moved(), "faults", 0, ended=111.5), "shorter than the grace"),
        (_history(decisions=[_lost(115.0, "worker 0 of slice-0 is gone")]), "was not reset"),
        (_history(decisions=[_lost(115.0, "it looked tired")]), "an unknown cause"),
        # A lost worker's slice is lost within the bound.
        (_history([_fault("silent", "w0", 110.0, 120.0)]), "is not lost within 8.0 s"),
        (_history([_fault("from", "w0", 110.0, 120.0)]), "is not lost within 8.5 s"),
        (_history([_fault("reset", "w0", 110.0, 120.0)]), "is not lost within 3.5 s"),
        (_changed(_moved(), "decisions", 1, at=118.5), "is not lost within 8.0 s"),
        # A tenant expires only by a broken stream, after its time to live.
        (_without(_expired(), "faults", 0), "its stream was not broken"),
        (_changed(_expired(), "faults", 0, cause="silent"), "its stream was not broken"),
        (_changed(_expired(), "faults", 0, cause="delay"), "its stream was not broken"),
        (_changed(_expired(), "decisions", 1, at=121.5), "before its time to live is over"),
        (_changed(_expired(), "faults", 0, ended=111.5), "shorter than its time to live"),
        # A proxy believes in what was granted, until it is taken.
        (_changed(_expired(), "beliefs", 1, slice_id="slice-1"), "bob's slice-1"),
        (_changed(_expired(), "beliefs", 1, generation=3), "was never granted"),
        (_changed(_expired(), "beliefs", 1, at=122.3), "is believed before it is granted"),
        (_history(beliefs=[Belief(at=105.0, tenant="ada", index=0)]), "and was not taken"),
        (_changed(_moved(), "beliefs", 1, at=114.0), "and was not taken"),
        # Two proxies believe in one slice only while the older one cannot be notified.
        (_later(_changed(_expired(), "lives", -1, at=144.0)), "are both believed for 21.3 s"),
        (_later(_without(_expired(), "lives", -1)), "are both believed for 27.3 s"),
        # All agree after the heal, within the bound.
        (_history(settled_at=124.0), "all agree only 14.0 s after the heal"),
        (_changed(_history(), "settled", 0, differences=("slice-0 is lost",)), "slice-0 is lost"),
    ],
)
def test_a_history_that_breaks_a_promise_is_refused(history: History, violation: str) -> None:
    assert any(violation in found for found in check(history)), check(history)


def test_a_stalled_machine_is_given_time() -> None:
    late = _changed(_moved(), "decisions", 1, at=120.5)
    assert check(late)
    late.stalls.append((112.0, 3.0))
    assert not [found for found in check(late) if "not lost within" in found]
