"""The state of a service by rows with keys, and the difference of two states."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

__all__ = [
    "COLLECTIONS",
    "Row",
    "State",
    "difference",
    "empty_state",
    "holdings_now",
    "state_of",
    "unreachable",
]

Row: TypeAlias = Mapping[str, Any]
#: By collection, by key.
State: TypeAlias = Mapping[str, Mapping[str, Row]]

#: Collections with the fields whose values are a row's key, joined by slashes.
_KEYS: Mapping[str, Sequence[str]] = {
    "slices": ("id",),
    "executors": ("slice", "host"),
    "tenants": ("name",),
    "queue": ("tenant",),
    "reservations": ("id",),
    "plans": ("id",),
}
COLLECTIONS = ("service", *_KEYS)
#: Fields that change with each second although nothing happened: the page counts seconds itself.
_RUNNING = frozenset({"waiting_s", "idle_s"})
#: Seconds to which an expected wait is rounded, so that it does not change with each reading.
_ROUNDING_S = 10.0


def empty_state() -> State:
    """Returns the state before the first answer."""
    return {name: {} for name in COLLECTIONS}


def state_of(service: Row, occupancy: Mapping[str, Sequence[Row]]) -> State:
    """Makes a state.

    Args:
      service: What is known of the service as a whole.
      occupancy: The lists of `detailed_occupancy_of`, or of ``sps status --json``, and of
        `plans_of`.
    """
    about = {**service, "unreachable_since": None, "error": None, "hint": None}
    rows = {
        name: {
            "/".join(str(row[field]) for field in fields): _steady(row)
            for row in occupancy.get(name, ())
        }
        for name, fields in _KEYS.items()
    }
    return {"service": {"service": about}, **rows}


def unreachable(state: State, *, since: str, error: str, hint: str) -> State:
    """Returns the last known state of a service that does not answer.

    Args:
      state: The last known state.
      since: The time of the last answer, or of the first question; RFC 3339.
      error: Why it does not answer.
      hint: What to do; may be empty.
    """
    about = state["service"].get("service", {})
    failing = {"unreachable_since": since, "error": error, "hint": hint or None}
    return {**state, "service": {"service": {**about, **failing}}}


def difference(before: State, after: State) -> dict[str, dict[str, Any]]:
    """Returns what changed, by collection: rows that are new or different, and keys that are gone.

    Collections without a change are absent.
    """
    changes = {}
    for name in COLLECTIONS:
        old, new = before[name], after[name]
        changed = {key: row for key, row in new.items() if old.get(key) != row}
        gone = [key for key in old if key not in new]
        if changed or gone:
            changes[name] = {"set": changed, "gone": gone}
    return changes


def holdings_now(state: State) -> Iterator[dict[str, Any]]:
    """Yields the holdings that go on, as rows of `history_rows` that end now."""
    now = time.time()
    for one in state["slices"].values():
        began = one.get("held_since") or one.get("since")
        if one["tenant"] and began:
            tenant = state["tenants"].get(one["tenant"], {})
            yield {
                "slice": one["id"],
                "instance_type": one["instance_type"],
                "tenant": one["tenant"],
                "user": tenant.get("user"),
                "team": tenant.get("team"),
                "start": datetime.fromisoformat(began).timestamp(),
                "end": now,
            }


def _steady(row: Row) -> Row:
    kept = {name: value for name, value in row.items() if name not in _RUNNING}
    if kept.get("expected_wait_s") is not None:
        kept["expected_wait_s"] = _ROUNDING_S * round(kept["expected_wait_s"] / _ROUNDING_S)
    return kept
