"""Failures that were filed by `scripts/flakes file`: each is explained or fixed within 14 days.

A fixed test's file is deleted in the commit that fixes it; a commit that explains one says what
keeps it from being fixed, and for whom the test fails meanwhile.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import yaml

_DAYS = 14


def problems(entry: dict[str, Any], today: datetime.date) -> list[str]:
    """Returns what is wrong with a filed failure."""
    found = []
    age = (today - entry["filed"]).days
    if age > _DAYS:
        found.append(f"filed {age} days ago, of {_DAYS} at most: fix {entry['test']}, or its cause")
    if not Path(entry["test"].partition("::")[0]).exists():
        found.append(f"{entry['test']} does not exist any more")
    return found


def test_no_filed_failure_is_old() -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    entries = [yaml.safe_load(path.read_text()) for path in Path(__file__).parent.glob("*.yaml")]
    assert [problem for entry in entries for problem in problems(entry, today)] == []


def test_an_old_entry_and_one_of_a_test_that_is_gone() -> None:
    today = datetime.date(2026, 11, 28)
    fresh = {"test": "tests/flakes/test_filed.py::test_x", "filed": datetime.date(2026, 11, 14)}
    assert problems(fresh, today) == []
    [old] = problems({**fresh, "filed": datetime.date(2026, 11, 13)}, today)
    assert old.startswith("filed 15 days ago, of 14 at most")
    [gone] = problems({**fresh, "test": "tests/test_gone.py::test_x"}, today)
    assert gone == "tests/test_gone.py::test_x does not exist any more"
