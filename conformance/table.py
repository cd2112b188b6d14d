"""The table of `docs/conformance.md`, from the kept results of all suites."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.own_service import ROOT

__all__ = ["RESULTS", "load_results", "rendered", "table_of_the_document", "write_table"]

RESULTS = ROOT / "conformance" / "results" / "suites"
DOCUMENT = ROOT / "docs" / "conformance.md"
_BEGIN, _END = "<!-- written by scripts/conformance --write -->", "<!-- end -->"


def load_results(directory: Path = RESULTS) -> list[dict[str, Any]]:
    """Returns the kept results of all suites, by name."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


def rendered(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns both tables: the suites, and the reasons of what differs."""
    rows = [_row(record["suite"], record, record["parts"].values()) for record in results]
    everything = [part for record in results for part in record["parts"].values()]
    total = _cells(everything)
    head = ("Suite", "Version", "Parts", "On the CPU", "Through a proxy", "Explained")
    return "\n".join(
        [
            f"| {' | '.join(head)} | Not explained | Not reached |",
            "|---" * (len(head) + 2) + "|",
            *rows,
            f"| all | | | {' | '.join(total)} |",
            "",
            "| Tests | Why they do not pass through a proxy |",
            "|---|---|",
            *_reasons(results),
        ]
    )


def _row(suite: str, record: Mapping[str, Any], parts: Any) -> str:
    release = record["versions"].get(
        suite if suite in record["versions"] else f"{suite}-checkpoint"
    )
    names = ", ".join(name.removesuffix("_test") for name in record["parts"])
    cells = " | ".join(_cells(list(parts)))
    return f"| {suite} | {release or record['ref']} | {names} | {cells} |"


def _cells(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    direct, proxy = (sum(part[how] for part in parts) for how in ("direct", "proxy"))
    explained, unexplained = (
        sum(len(part[which]) for part in parts) for which in ("explained", "unexplained")
    )
    left = sum(max((r["tests"] for r in part["not_reached"].values()), default=0) for part in parts)
    share = f"{proxy / max(1, direct):.2%}"
    return [str(direct), f"{proxy} ({share})", str(explained), str(unexplained), str(left)]


def _reasons(results: Sequence[Mapping[str, Any]]) -> list[str]:
    count: Counter[str] = Counter()
    suites: dict[str, set[str]] = {}
    for record in results:
        for part in record["parts"].values():
            for reason in part["explained"].values():
                count[reason] += 1
                suites.setdefault(reason, set()).add(record["suite"])
    return [
        f"| {tests} ({', '.join(sorted(suites[reason]))}) | {reason} |"
        for reason, tests in count.most_common()
    ]


def write_table() -> None:
    """Puts the tables into the document."""
    head, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    DOCUMENT.write_text(f"{head}{_BEGIN}\n{rendered(load_results())}\n{_END}{tail}")


def table_of_the_document() -> str:
    """Returns the tables as the document has them."""
    return DOCUMENT.read_text().partition(_BEGIN)[2].partition(_END)[0].strip()
