"""Runs JAX of one release on a proxy of another, for each given pair, and reports what passed.

Each pair runs all checks of `harness.jax_checks`: the same functions on the client's own CPU and
through the proxy, compared bit by bit. `scripts/compat` makes the environments and calls this.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from conformance.table import MEASURED
from harness.figures.pages import filled, measured_on, written_at
from harness.jax_checks.parent import child_on_a_proxy
from harness.layers.timer_slack import allow_late_timers
from harness.page_texts import PageText
from harness.results import measured, write_result
from shared_pathways_service.api.jax_releases import check_pair
from shared_pathways_service.errors import VersionSkew

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "conformance" / "results" / "releases.json"
TABLE = PageText(ROOT / "docs" / "compatibility.md", "<!-- written by scripts/compat --write -->")
#: The release that the main tests run on.
MAIN_RELEASE = importlib.metadata.version("jax")
_JAX, _CALLBACKS = (
    "harness.jax_checks.child",
    "harness.jax_checks.callbacks_child",
)
# (In this order: the second import adds cases to the first.)
_TELL_NAMES = """
import json
from harness.jax_checks.all_checks import COMPARED
from harness.jax_checks.basics import CHECKS
names = [*CHECKS, *COMPARED]
from harness.jax_checks.all_callback_checks import NAMES
print(json.dumps([names, NAMES]))
"""

#: Checks that compare texts or features of two releases of XLA, not results of programs.
SAME_RELEASE_ONLY = {
    "ahead_of_time": "the text and the cost of a compiled program are those of the proxy's XLA",
    "errors_of_programs": "XLA words its errors anew from one release to the next",
    "functions_of_custom_calls": "the last bits of sums differ",
    "linear_algebra_of_every_type": "the last bits of LAPACK's and XLA's results differ",
    "memory_kinds": "JAX 0.9's CPU cannot run programs that place arrays in a host's memory",
}
#: What the short form runs, by the child that runs it: the wire, shardings, programs over slices,
#: every type; functions that programs call, and XLA while it compiles.
SHORT = {
    _JAX: (
        "devices",
        "sharded_jit",
        "gradients_across_slices",
        "moves_between_any_two_shardings",
        "every_dtype",
        "linear_algebra",
        "sums_of_many_rows",
        "broadcasts_over_eight_dimensions",
    ),
    _CALLBACKS: (
        "callbacks_of_each_kind",
        "callbacks_in_control_flow",
        "compile_time_shardings",
        "compile_time_partitioning",
    ),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a client got on with a service.

    Attributes:
      client: Its release of JAX.
      service: The proxy's.
      passed: Checks that passed.
      failed: Those that did not, with the last line of how.
      refused: Why connect() refuses the pair; empty where it does not.
    """

    client: str
    service: str
    passed: int = 0
    failed: tuple[str, ...] = ()
    refused: str = ""


def pairs(releases: Sequence[str], *, short: bool) -> list[tuple[str, str]]:
    """Returns the pairs of a client's and a service's release.

    The short form has each release with itself and, both ways, with the last one: but not the
    release of this environment with itself, which the tests of `scripts/test` run on.
    """
    return [
        (client, service)
        for client, service in itertools.product(releases, repeat=2)
        if not short
        or (
            (client == service or releases[-1] in {client, service})
            and not client == service == MAIN_RELEASE
        )
    ]


def run_pair(client: str, service: str, pythons: dict[str, str], *, short: bool) -> Outcome:
    """Runs one pair.

    Args:
      client: A release of `pythons`.
      service: Another, or the same.
      pythons: The interpreter of an environment with each release.
      short: Whether to run `SHORT` alone.
    """
    try:
        check_pair(client, service, "the service", ours=True)
    except VersionSkew as skew:
        return Outcome(client, service, refused=skew.message)
    checks = SHORT if short else _names(pythons[client])
    passed, failed = 0, list[str]()
    for child, names in checks.items():
        with child_on_a_proxy(
            child, python=pythons[client], proxys_python=pythons[service]
        ) as run_check:
            for name in names:
                if client != service and name in SAME_RELEASE_ONLY:
                    continue
                if failure := run_check(name).strip():
                    failed.append(f"{name}: {failure.splitlines()[-1]}")
                else:
                    passed += 1
    return Outcome(client, service, passed, tuple(failed))


def _names(python: str) -> dict[str, Sequence[str]]:
    """Returns the checks for the release of an interpreter, by the child that runs them."""
    told = subprocess.run(
        [python, "-c", _TELL_NAMES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip((_JAX, _CALLBACKS), json.loads(told.stdout.splitlines()[-1]), strict=True))


def rendered(outcomes: list[Outcome], run: Mapping[str, Any], commit: str) -> str:
    """Returns the table of docs/compatibility.md, with its origin.

    Args:
      outcomes: Of all pairs.
      run: The provenance of their run.
      commit: At which the page is written.
    """
    by_pair = {(o.client, o.service): o for o in outcomes}
    clients = list(dict.fromkeys(o.client for o in outcomes))
    services = list(dict.fromkeys(o.service for o in outcomes))
    rows = [
        "| JAX of the client | " + " | ".join(f"service {s}" for s in services) + " |",
        "|---" * (len(services) + 1) + "|",
    ]
    for client in clients:
        cells = [_cell(by_pair.get((client, service))) for service in services]
        rows.append(f"| {client} | " + " | ".join(cells) + " |")
    origin = (
        f"({measured_on(run, MEASURED, commit)}; `scripts/compat --write` measures it again, "
        f"`{RESULTS.relative_to(ROOT)}` has it.)"
    )
    return "\n".join([*rows, "", filled(origin)])


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    if outcome.refused:
        return "`VersionSkew`"
    count = outcome.passed + len(outcome.failed)
    return f"{outcome.passed} of {count}" + " **failed**" * bool(outcome.failed)


def load() -> tuple[list[Outcome], dict[str, Any]]:
    """Returns the outcomes that were written last, and the provenance of their run."""
    record = json.loads(RESULTS.read_text())
    rows = [Outcome(**{**entry, "failed": tuple(entry["failed"])}) for entry in record["result"]]
    return rows, record["provenance"]


def write(outcomes: list[Outcome]) -> None:
    """Keeps the outcomes, and puts their table into the document."""
    write_result("releases", [dataclasses.asdict(o) for o in outcomes], RESULTS)
    TABLE.write(rendered(*load(), written_at()))


def parser_of_releases(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of what runs on several releases of JAX: `--python` and `--write`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--python",
        action="append",
        required=True,
        metavar="RELEASE=PATH",
        help="interpreter of an environment with that release of JAX; once for each",
    )
    parser.add_argument("--write", action="store_true", help="write the table of the document")
    return parser


@measured()
def main() -> None:
    parser = parser_of_releases(__doc__)
    parser.add_argument("--short", action="store_true", help="a few checks of each pair")
    given = parser.parse_args()
    if given.write and given.short:
        parser.error("--write: the document's table has the whole of the checks, not --short")
    pythons = dict(entry.split("=", 1) for entry in given.python)
    allow_late_timers()
    outcomes = list[Outcome]()
    # A pair starts two processes, and each mostly waits for the other. (All of the checks have the
    # machine to themselves: some take all of it.)
    with ThreadPoolExecutor(2 if given.short else 1) as threads:
        for outcome in threads.map(
            lambda pair: run_pair(pair[0], pair[1], pythons, short=given.short),
            pairs(list(pythons), short=given.short),
        ):
            outcomes.append(outcome)
            print(
                f"JAX {outcome.client} on a service with {outcome.service}: {_cell(outcome)}",
                *(f"  {failure}" for failure in outcome.failed),
                sep="\n",
                flush=True,
            )
    if given.write:
        write(outcomes)
    if any(outcome.failed for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
