"""Other projects' test suites, directly on the CPU and through a proxy: what passes only directly?

    scripts/conformance --suite NAME [PARTS…] [--engines] [--continue] [--write]
    scripts/conformance --table

`suites.toml` names the suites and their parts. Each part runs twice at the same time,
in processes of its own and with the same number of devices: on the local CPU, and through a proxy
of its own. Tests that pass only directly run once more through another proxy: those that pass then
are counted as failed, and listed as such. A difference that `differences.toml` explains is
listed with its reason; any other one, and a proxy that did not end well, makes the exit code 1.
Tests that were not reached in time are counted, and not compared; `--continue` runs them, and
adds their results to the recorded ones. `--engines` compares a proxy's two engines instead, the
local one and that with executors, on two slices of two hosts each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance.compare import (
    DIFFERENCES,
    Difference,
    compare,
    explain,
    first_not_reached,
    is_well,
    known_differences,
    merge,
)
from conformance.runs import (
    Run,
    Settings,
    run_directly,
    run_on_executors,
    run_through_proxy,
)
from conformance.suites import (
    Suite,
    load_suites,
    make_environment,
    make_source,
    versions,
)
from conformance.table import ENGINES as ENGINE_RESULTS
from conformance.table import RESULTS, write_table
from harness.results import Measurement, measuring, stamped

#: Tests of a part that are printed; the JSON has all.
SHOWN = 25


@dataclasses.dataclass(frozen=True)
class Sides:
    """Both ways to run a part, of which the first is the measure for the second.

    Attributes:
      names: Of both, in what is printed.
      runs: Of both; that of the second runs some tests only, if it is given their names.
      devices: Of both; None: the suite's own number.
      slices: The proxy's; empty: one with all devices.
      folder: Of the kept results.
      prefix: Of the tests in `differences.toml`.
    """

    names: tuple[str, str]
    runs: tuple[Callable[[Settings], Run], Callable[..., Run]]
    devices: int | None = None
    slices: tuple[str, ...] = ()
    folder: Path = RESULTS
    prefix: str = ""


PROXY = Sides(("on the CPU", "through the proxy"), (run_directly, run_through_proxy))
#: Two slices of two hosts, each with four devices.
ENGINES = Sides(
    ("on the local engine", "on executors"),
    (run_through_proxy, run_on_executors),
    devices=16,
    slices=("tpuv6e:2x4", "tpuv6e:2x4"),
    folder=ENGINE_RESULTS,
    prefix="engines/",
)


def run_part(
    settings: Settings, suite: str, known: Sequence[Difference], sides: Sides = PROXY
) -> dict[str, Any]:
    """Runs a part both ways; returns the comparison, which is printed and recorded."""
    first, second = sides.runs
    # At the same time: half the wait.
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(first, settings)
        proxied = second(settings)
        direct = running.result()
    return compare(suite, direct, proxied, known, lambda tests: second(settings, tests))


def show(
    suite: str,
    part: str,
    result: Mapping[str, Any],
    known: Sequence[Difference],
    names: tuple[str, str] = PROXY.names,
) -> None:
    """Prints one part's result."""
    explained, unexplained = explain(suite, result["failed"], known)
    print(
        f"{part:20} {result['direct']:5} {names[0]}, {result['proxy']:5} {names[1]} "
        f"({result['share']:.2%}); {result['direct_s']:.0f} s and {result['proxy_s']:.0f} s",
        flush=True,
    )
    if result["proxy_end"]:
        print(f"  the proxy {result['proxy_end']}")
    for how, what in result["broken"].items():
        print(f"  {how}: {what}")
    for how, rest in result["not_reached"].items():
        print(f"  {how}: no time for {rest['tests']} of {result['tests']}, from {rest['from']} on")
    for test, error in result["passed_alone"].items():
        print(f"  failed, and passed when it was run again alone: {test}: {error}")
    for test, reason in explained.items():
        print(f"  known: {test}: {reason}")
    for test, error in list(unexplained.items())[:SHOWN]:
        print(f"  {test}: {error}")
    if (more := len(unexplained) - SHOWN) > 0:
        print(f"  and {more} more", flush=True)


def recorded_parts(
    suite: Suite, releases: Mapping[str, str], path: Path | None
) -> dict[str, dict[str, Any]]:
    """Returns the recorded results of parts that ran with the same releases, tests and variables.

    Older records do not state the arguments and variables; those count as the same.
    """
    if path is None or not path.exists():
        return {}
    now = {
        name: {"ref": suite.ref, "versions": dict(releases), **_selection(suite, name)}
        for name in suite.parts
    }
    return {
        name: part
        for name, part in json.loads(path.read_text())["parts"].items()
        if name in now and all(part.get(key, value) == value for key, value in now[name].items())
    }


def _selection(suite: Suite, part: str) -> dict[str, Any]:
    return {"arguments": suite.parts[part], "environment": dict(suite.environment)}


def stamped_part(
    suite: Suite,
    part: str,
    result: Mapping[str, Any],
    releases: Mapping[str, str],
    measurement: Measurement,
) -> dict[str, Any]:
    """Returns a part's result as it is kept: with what was run, and its provenance."""
    what = {"ref": suite.ref, "versions": dict(releases), **_selection(suite, part)}
    return stamped({**what, **result}, measurement)


def write_results(
    suite: Suite,
    result: Mapping[str, dict[str, Any]],
    releases: Mapping[str, str],
    path: Path,
) -> None:
    """Writes the results of some parts, in place of earlier ones; those of other parts stay.

    Results of other releases or tests are not comparable, so they are dropped.
    """
    parts = recorded_parts(suite, releases, path) | dict(result)
    record = {
        "suite": suite.name,
        "parts": {name: parts[name] for name in suite.parts if name in parts},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suite", help="as in suites.toml")
    parser.add_argument(
        "--table", action="store_true", help="only write the page, from the kept results"
    )
    parser.add_argument("parts", nargs="*", help="all by default")
    parser.add_argument(
        "--continue",
        dest="continues",
        action="store_true",
        help="run only what the kept results have not reached (all of a part without results)",
    )
    parser.add_argument(
        "--engines", action="store_true", help="compare a proxy's engines, not a proxy with the CPU"
    )
    parser.add_argument("--test-timeout", type=int, default=300, help="seconds per test")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds per part")
    parser.add_argument("--pytest", action="append", default=[], help="e.g. --pytest=-kdonat")
    parser.add_argument("--source", type=Path, help="a checkout to use instead of an own one")
    parser.add_argument("--differences", type=Path, default=DIFFERENCES, help="those explained")
    parser.add_argument("--suites", type=Path, help="another suites.toml")
    parser.add_argument("--python", type=Path, help="an interpreter to use for the tests")
    parser.add_argument("--out", type=Path, help="JSON in which the parts' results are replaced")
    parser.add_argument("--write", action="store_true", help="keep the results, and show them")
    return parser


def _chosen_suite(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Suite:
    suites = load_suites(options.suites) if options.suites else load_suites()
    suite = suites.get(options.suite)
    if suite is None:
        parser.error(f"--suite {options.suite}: there is {', '.join(suites)}")
    if unknown := [part for part in options.parts if part not in suite.parts]:
        parser.error(f"{unknown[0]}: the parts of {suite.name} are {', '.join(suite.parts)}")
    return suite


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.table:
        write_table()
        return 0
    suite = _chosen_suite(parser, options)
    sides = ENGINES if options.engines else PROXY
    out = sides.folder / f"{suite.name}.json" if options.write else options.out
    if out is not None and options.pytest:
        parser.error("--out with --pytest: some tests of a part would stand there for all of it")
    if out is None and options.continues:
        parser.error("--continue: --write or --out says which results it goes on from")
    known = known_differences(options.differences)
    python = options.python or make_environment(suite)
    source = options.source or make_source(suite)
    releases = versions(python, suite.requirements) | {"proxy's jaxlib": version("jaxlib")}
    suite = dataclasses.replace(
        suite, name=sides.prefix + suite.name, devices=sides.devices or suite.devices
    )
    earlier = recorded_parts(suite, releases, out) if options.continues else {}
    well = True
    for part in options.parts or suite.parts:
        before = earlier.get(part)
        first = first_not_reached(before) if before else ""
        # A part that found no test, or broke without a remainder, is run anew.
        if before and before["tests"] and not (first or before["broken"]):
            print(f"{part:20} nothing is left to run")
            well = well and is_well(suite.name, before, known)
            continue
        settings = Settings(
            directory=source / suite.directory,
            tests=[*options.pytest, *suite.parts[part]],
            devices=suite.devices,
            environment=suite.environment,
            jax_settings=suite.jax_settings,
            test_timeout=options.test_timeout,
            timeout=options.timeout,
            first=first,
            python=python,
            slices=sides.slices,
        )
        with measuring() as measurement:
            result = run_part(settings, suite.name, known, sides)
            show(suite.name, part, result, known, sides.names)
            if before and first:
                result = merge(before, result)
            if out is not None:
                kept = stamped_part(suite, part, result, releases, measurement)
                write_results(suite, {part: kept}, releases, out)
        if options.write:
            write_table()
        well = well and is_well(suite.name, result, known)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
