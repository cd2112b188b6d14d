"""What a run of pytest reported, read from the file of the recorder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Failure", "Record", "TestResult", "file_name_of", "read_record"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure of a test.

    Attributes:
      when: Its phase: ``setup``, ``call`` or ``teardown``; ``???`` if its process crashed.
      text: The traceback, and what pytest says beside it.
      output: The captured sections, each a heading and a text.
      seeds: Seeds that the test drew.
      at: The time, in ISO 8601.
      load: The load averages of 1, 5 and 15 minutes.
      cpu_pressure: The first line of Linux's pressure file; empty where there is none.
    """

    when: str
    text: str
    output: Sequence[Sequence[str]]
    seeds: Mapping[str, Any]
    at: str
    load: Sequence[float]
    cpu_pressure: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestResult:
    """How a test ended.

    Attributes:
      test: Its node id.
      outcome: ``passed``, ``failed`` or ``skipped``; an expected failure has passed.
      seconds: Of its set-up, its call and its tear-down.
      reason: Why it was skipped.
      failures: Empty unless it failed.
    """

    __test__ = False  # not a test, whatever pytest makes of the name

    test: str
    outcome: str
    seconds: float
    reason: str
    failures: tuple[Failure, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """What one run of pytest reported.

    Attributes:
      results: By test, of those that came to their end.
      collection_errors: Texts of modules that could not be collected, by module.
      exit_status: pytest's own; None: it did not come to its end.
    """

    results: Mapping[str, TestResult]
    collection_errors: Mapping[str, str]
    exit_status: int | None


def read_record(path: Path) -> Record:
    """Reads the file of a run, which may have crashed before it wrote any."""
    lines = path.read_text().splitlines() if path.exists() else []
    reports: dict[str, list[dict[str, Any]]] = {}
    errors: dict[str, str] = {}
    exit_status = None
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:  # pytest was killed while it wrote
            continue
        kind = fields.pop("kind")
        if kind == "report":
            reports.setdefault(fields["test"], []).append(fields)
        elif kind == "collection":
            errors[fields["test"]] = fields["text"]
        else:
            exit_status = fields["exit"]
    return Record(
        results={test: _result(test, told) for test, told in reports.items() if _has_ended(told)},
        collection_errors=errors,
        exit_status=exit_status,
    )


def _has_ended(reports: Iterable[Mapping[str, Any]]) -> bool:
    """Returns whether a test came to its end, or failed before."""
    return any(report["when"] == "teardown" or report["outcome"] == "failed" for report in reports)


def _result(test: str, reports: Iterable[Mapping[str, Any]]) -> TestResult:
    reports = list(reports)
    failures = tuple(
        Failure(**{field.name: report[field.name] for field in dataclasses.fields(Failure)})
        for report in reports
        if report["outcome"] == "failed"
    )
    skips = [r for r in reports if r["outcome"] == "skipped" and not r["is_expected"]]
    outcome = "failed" if failures else "skipped" if skips else "passed"
    return TestResult(
        test=test,
        outcome=outcome,
        seconds=sum(report["seconds"] for report in reports),
        reason=skips[0]["text"] if skips else "",
        failures=failures,
    )


def file_name_of(test: str) -> str:
    """Returns a test's name for a file, with a digest: two tests may differ in a sign alone."""
    name = test.removeprefix("tests/").replace(".py::", "-")
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:120]
    return f"{plain}-{hashlib.sha256(test.encode()).hexdigest()[:6]}"
