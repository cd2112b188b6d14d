"""Comparison of runs, merged results, and explained differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.compare import (
    compare,
    first_not_reached,
    is_well,
    known_differences,
    merge,
    reason_of,
)
from conformance.runs import Run
from tests.conformance.parts import part


def test_two_steps_of_a_part_are_merged() -> None:
    earlier = part(9, 3, 2, proxy_left=(5, "e")) | {
        "failed": {"b": "wrong"},
        "provenance": {"commit": "1"},
    }
    later = part(5, 1, 1, direct_left=(2, "h")) | {"failed": {"f": "why"}}

    merged = merge(earlier, later)

    assert (merged["tests"], merged["direct"], merged["proxy"]) == (9, 4, 3)
    assert (merged["share"], merged["direct_s"]) == (0.75, 20.0)
    assert merged["failed"] == {"b": "wrong", "f": "why"}
    assert merged["continues"] == [{"commit": "1"}]
    assert first_not_reached(merged) == "h"


def test_a_continuation_without_tests_is_refused() -> None:
    earlier = part(9, 3, 2, proxy_left=(5, "e"))
    with pytest.raises(ValueError, match="there is no test e: run all"):
        merge(earlier, part(0, 0, 0))


def run(*tests: str, passed: str = "", failed: str = "", backend: str = "") -> Run:
    return Run(
        collected=tests,
        passed=frozenset(passed.split()),
        failed=dict.fromkeys(failed.split(), "wrong"),
        skipped=frozenset(),
        seconds=1,
        backend=backend,
    )


def compared(direct: Run, proxied: Run, again: Run | None = None) -> dict[str, Any]:
    asked: list[Sequence[str]] = []

    def run_again(tests: Sequence[str]) -> Run:
        asked.append(tests)
        assert again is not None
        return again

    return compare("own", direct, proxied, [], run_again) | {"asked": asked}


def test_unreached_tests_are_counted_and_not_compared() -> None:
    direct = run("a", "b", "c", "d", "e", passed="a b c d")
    proxied = run("a", "b", "c", "d", "e", passed="a", failed="b")

    result = compared(direct, proxied, run("b", failed="b"))

    assert (result["direct"], result["proxy"], result["share"]) == (2, 1, 0.5)
    assert result["failed"] == {"b": "wrong"}
    assert result["asked"] == [["b"]]
    assert result["not_reached"] == {
        "direct": {"tests": 1, "from": "e"},
        "proxy": {"tests": 3, "from": "c"},
    }


def test_a_test_that_failed_first_has_not_passed() -> None:
    direct = run("a", "b", "c", passed="a b c")
    proxied = run("a", "b", "c", passed="a", failed="b c")

    result = compared(direct, proxied, run("b", "c", passed="b", failed="c"))

    assert (result["direct"], result["proxy"], result["share"]) == (3, 1, 0.3333)
    assert (result["passed_alone"], result["failed"]) == ({"b": "wrong"}, {"c": "wrong"})


def test_a_run_on_the_local_cpu_does_not_count_as_proxied() -> None:
    same = run("a", passed="a", backend="cpu")
    assert is_well("own", compared(same, run("a", passed="a", backend="proxy")), [])
    assert not is_well("own", compared(same, same), [])


def test_a_broken_run_is_not_well() -> None:
    well = {"failed": {}, "proxy_end": "", "broken": {}}
    assert is_well("own", well, [])
    assert not is_well("own", well | {"broken": {"direct": "its process ended with 4"}}, [])
    assert not is_well("own", well | {"proxy_end": "ended with -11"}, [])


def test_brackets_in_patterns_of_differences_are_literal(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(
        "[[difference]]\nreason = 'why'\ntests = ['own/a.py::test[1-*]']"
    )
    known = known_differences(tmp_path / "known.toml")
    assert reason_of("own/a.py::test[1-x]", known) == "why"
    assert reason_of("own/a.py::test1", known) == ""
