"""The state of a service by rows, and the difference of two states."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.web.page_state import (
    COLLECTIONS,
    State,
    difference,
    empty_state,
    state_of,
    unreachable,
)
from tests.pure import leaves_nothing_behind

__all__ = ["leaves_nothing_behind"]

_ROWS = st.dictionaries(
    st.sampled_from("abcdef"), st.fixed_dictionaries({"value": st.integers(0, 2)})
)
_STATES = st.fixed_dictionaries(dict.fromkeys(COLLECTIONS, _ROWS))


@given(before=_STATES, after=_STATES)
def test_a_difference_leads_from_one_state_to_the_other(before: State, after: State) -> None:
    shown: dict[str, dict[str, Any]] = {name: dict(rows) for name, rows in before.items()}
    changes = difference(before, after)
    for name, change in changes.items():
        assert change["set"] or change["gone"]
        shown[name].update(change["set"])
        for key in change["gone"]:
            del shown[name][key]
    assert shown == after
    assert (changes == {}) == (before == after)


def test_passing_seconds_are_no_change() -> None:
    def look(seconds: float) -> State:
        queued = {"tenant": "ada", "waiting_s": seconds, "expected_wait_s": 100.0 - seconds}
        tenant = {"name": "ada", "idle_s": seconds}
        return state_of({}, {"queue": [queued], "tenants": [tenant]})

    assert difference(look(1.0), look(2.0)) == {}
    assert difference(look(1.0), look(20.0))["queue"]["set"]["ada"]["expected_wait_s"] == 80.0


def test_a_service_that_does_not_answer_keeps_its_last_rows() -> None:
    since = "2026-01-01T00:00:00Z"
    known = state_of({"address": "a"}, {"slices": [{"id": "slice-0"}]})
    lost = unreachable(known, since=since, error="refused", hint="")
    assert lost["slices"] == known["slices"]
    assert lost["service"]["service"] == {
        "address": "a", "unreachable_since": since, "error": "refused", "hint": None
    }  # fmt: skip
    assert difference(lost, known).keys() == {"service"}
    never = unreachable(empty_state(), since=since, error="refused", hint="start it")
    assert never["service"]["service"]["hint"] == "start it"
