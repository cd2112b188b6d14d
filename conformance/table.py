"""The tables of `docs/conformance.md`, from the kept results of all suites and `suites.toml`.

The page names the commit that it was written at. A part counts as run on that commit if what it
measures has not changed since the commit of its own run.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.compare import DIFFERENCES, Difference, explain, known_differences
from conformance.suites import load_suites
from harness import history
from harness.page_texts import PageText
from harness.results import ROOT

__all__ = [
    "ENGINES",
    "RESULTS",
    "TABLES",
    "load_results",
    "rendered",
    "selections",
    "shown_argument",
    "write_table",
    "written_at",
]

RESULTS = ROOT / "conformance" / "results" / "suites"
ENGINES = RESULTS.with_name("engines")
TABLES = PageText(
    ROOT / "docs" / "conformance.md", "<!-- written by scripts/conformance --table -->"
)
#: What a suite measures: a change of anything else leaves its results as they are.
MEASURED = tuple(
    f"shared_pathways_service/{folder}" for folder in ("servers", "jax_client", "protocol")
)
_WRITTEN_AT = re.compile(r"Written at commit `(\w+)`")
_COUNTED = (
    "On the CPU",
    "Through a proxy",
    "Failed first, passed alone",
    "Explained",
    "Not explained",
    "Not reached",
    "Not run on this commit",
)
_ENGINES_HEAD = (
    "Engines, 16 devices",
    "Tests",
    "Run",
    "On the local engine",
    "On executors",
    "Failed first, passed alone",
)
_Rows = Sequence[tuple[str, Mapping[str, Any]]]


def load_results(directory: Path = RESULTS) -> list[dict[str, Any]]:
    """Returns the kept results of all suites, by name."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


def rendered(results: Sequence[Mapping[str, Any]], commit: str) -> str:
    """Returns the tables: the suites, the reasons of what differs, and what was selected.

    Args:
      results: Of all suites.
      commit: At which the tables are written.
    """
    known = known_differences(DIFFERENCES)
    everything = [(r["suite"], part) for r in results for part in r["parts"].values()]
    head = ("Suite", "Version", "Parts", "Run", *_COUNTED)
    return "\n".join(
        [
            f"Written at commit `{commit[:10]}` of {history.date_of(commit)}.",
            "",
            f"| {' | '.join(head)} |",
            "|---" * len(head) + "|",
            *(_row(record, commit, known) for record in results),
            f"| all | | | | {' | '.join(_cells(everything, commit, known))} |",
            "",
            "| Tests | Why they do not pass through a proxy |",
            "|---|---|",
            *_reasons(everything, known),
            "",
            *selections(),
            "",
            *_engines(),
        ]
    )


def _row(record: Mapping[str, Any], commit: str, known: Sequence[Difference]) -> str:
    suite, parts = record["suite"], record["parts"]
    names = ", ".join(name.removesuffix("_test") for name in parts)
    releases = dict.fromkeys(_release(suite, part) for part in parts.values())
    runs = dict.fromkeys(_run(part) for part in parts.values())
    cells = _cells([(suite, part) for part in parts.values()], commit, known)
    return (
        f"| {suite} | {', '.join(releases)} | {names} | {'; '.join(runs)} | {' | '.join(cells)} |"
    )


def _release(suite: str, part: Mapping[str, Any]) -> str:
    versions = part["versions"]
    found: str = versions.get(suite) or versions.get(f"{suite}-checkpoint") or part["ref"]
    return found


def _run(part: Mapping[str, Any]) -> str:
    provenance = part.get("provenance")
    if provenance is None:
        return f"kept on {part['kept_on']}, commit not recorded"
    changed = ", changed" * bool(provenance["changed"])
    return f"{provenance['date'][:10]} at `{str(provenance['commit'])[:10]}`{changed}"


def _cells(parts: _Rows, commit: str, known: Sequence[Difference]) -> list[str]:
    direct, proxy = (sum(part[how] for _, part in parts) for how in ("direct", "proxy"))
    reasons = [explain(suite, part["failed"], known) for suite, part in parts]
    counts = (
        sum(len(part["passed_alone"]) for _, part in parts),
        sum(len(explained) for explained, _ in reasons),
        sum(len(unexplained) for _, unexplained in reasons),
        sum(max((r["tests"] for r in p["not_reached"].values()), default=0) for _, p in parts),
        sum(part["direct"] for _, part in parts if not _is_run_on(commit, part)),
    )
    return [str(direct), f"{proxy} ({proxy / max(1, direct):.2%})", *map(str, counts)]


def _is_run_on(commit: str, part: Mapping[str, Any]) -> bool:
    runs = [part.get("provenance"), *part.get("continues", ())]
    return all(
        run
        and run["commit"]
        and not run["changed"]
        and history.age(run["commit"], MEASURED, commit) == 0
        for run in runs
    )


def _reasons(parts: _Rows, known: Sequence[Difference]) -> list[str]:
    count: Counter[str] = Counter()
    suites: dict[str, set[str]] = {}
    for suite, part in parts:
        explained, unexplained = explain(suite, part["failed"], known)
        said = "not explained" if "provenance" in part else "not explained; recorded with that run"
        lines = [*explained.values(), *(f"{said}: {error}" for error in unexplained.values())]
        for reason in lines:
            count[reason] += 1
            suites.setdefault(reason, set()).add(suite)
    return [
        f"| {tests} ({', '.join(sorted(suites[reason]))}) | {reason.replace('|', '&#124;')} |"
        for reason, tests in count.most_common()
    ]


def selections() -> list[str]:
    """Returns the table of what is run of each suite, as `suites.toml` says it."""
    rows = []
    for suite in load_suites().values():
        variables = " ".join(f"`{name}={value}`" for name, value in suite.environment.items())
        for name, arguments in suite.parts.items():
            given = " ".join(shown_argument(one) for one in arguments)
            cells = (suite.name, suite.ref[:12], name, given, variables, suite.note)
            rows.append(f"| {' | '.join(cells)} |")
    return [
        "| Suite | Source | Part | Arguments of pytest | Variables | Left out |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


def shown_argument(argument: str) -> str:
    """Returns an argument of pytest as code, but not as what names a file of this repository."""
    return f"<code>{html.escape(argument)}</code>"


def _engines() -> list[str]:
    rows = [
        f"| {record['suite'].removeprefix('engines/')} {name} | {part['tests']} | {_run(part)} "
        f"| {part['direct']} | {part['proxy']} | {len(part['passed_alone'])} |"
        for record in load_results(ENGINES)
        for name, part in record["parts"].items()
    ]
    return [
        f"| {' | '.join(_ENGINES_HEAD)} |",
        "|---" * len(_ENGINES_HEAD) + "|",
        *rows,
    ]


def write_table() -> None:
    """Puts the tables into the document."""
    commit = history.head()
    if commit is None:
        raise RuntimeError("the page names the commit that it is written at: git is needed")
    TABLES.write(rendered(load_results(), commit))


def written_at() -> str:
    """Returns the commit that the document names."""
    found = _WRITTEN_AT.search(TABLES.read())
    assert found is not None
    return found[1]
