"""Runs programs that some releases of JAX get wrong on CPUs, on each release; reports the results.

On this machine's CPU each program runs in a process of its own, with the release as it is and with
the flag of `api/faulty_jax.py`. On a proxy of the release it must be right as it is.
`scripts/compat` makes the environments and calls this.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.releases import parser_of_releases
from harness.figures.pages import age_of, commit_of, written_at
from harness.jax_checks.faults import FAULTS
from harness.jax_checks.parent import child_on_a_proxy
from harness.page_texts import PageText
from harness.results import measuring, stamped
from shared_pathways_service.api.faulty_jax import SOUND_XLA_FLAGS, fault_of
from shared_pathways_service.api.jax_releases import release_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "conformance" / "results" / "faults.json"
TABLE = PageText(
    ROOT / "docs" / "compatibility.md",
    "<!-- written by scripts/compat --write: faults -->",
    "<!-- end of faults -->",
)
#: What compiles programs.
MEASURES = tuple(f"shared_pathways_service/servers/{folder}" for folder in ("proxy", "xla"))
#: A program that crashes on some CPUs runs without end on others.
_TIME_S = 300.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the programs ended with one release: `right`, `wrong`, `crashed` or `hung`.

    Attributes:
      release: Of JAX.
      here: On this machine's CPU, by program.
      here_with_flag: There, with the flag.
      on_proxy: On a proxy of the release.
    """

    release: str
    here: dict[str, str]
    here_with_flag: dict[str, str]
    on_proxy: dict[str, str]

    def is_as_promised(self) -> bool:
        """Whether proxies and the flag are right, and the release where no fault is known."""
        promised = [*self.here_with_flag.values(), *self.on_proxy.values()]
        if fault_of(self.release) is None:
            promised += self.here.values()
        return set(promised) == {"right"}


def run(release: str, python: str) -> Outcome:
    """Runs all programs with the interpreter of an environment with a release."""
    return Outcome(
        release,
        {name: _run_here(python, name, "") for name in FAULTS},
        {name: _run_here(python, name, SOUND_XLA_FLAGS) for name in FAULTS},
        {name: _run_on_a_proxy(python, name) for name in FAULTS},
    )


def _run_here(python: str, name: str, xla_flags: str) -> str:
    try:
        code = subprocess.run(
            [python, "-m", "harness.jax_checks.faults", name],
            check=False,
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIME_S,
        ).returncode
    except subprocess.TimeoutExpired:
        return "hung"
    return {0: "right", 1: "wrong"}.get(code, "crashed")


def _run_on_a_proxy(python: str, name: str) -> str:
    """Runs a program on a proxy of its own, which may crash."""
    child = "harness.jax_checks.child"
    try:
        with child_on_a_proxy(child, python=python, proxys_python=python) as run_check:
            failure = run_check(name)
    except AssertionError:  # (of the proxy's end)
        return "crashed"
    if not failure:
        return "right"
    return "wrong" if "AssertionError" in failure else "crashed"


def rendered(parts: Mapping[str, Mapping[str, Any]], commit: str) -> str:
    """Returns the table of docs/compatibility.md.

    Args:
      parts: The rows of each outcome with their provenance, by release.
      commit: At which the page is written.
    """
    rows = [
        "| release | on the local CPU | there, with the flag | on our proxies | run |",
        "|---|---|---|---|---|",
    ]
    for release, part in parts.items():
        cells = [_cell(part[name]) for name in ("here", "here_with_flag", "on_proxy")]
        run = part["provenance"]
        age = age_of(run["commit"], MEASURES, commit)
        cells.append(f"{run['date'][:10]}, {commit_of(run)}{age}")
        rows.append(f"| {release} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(results: Mapping[str, str]) -> str:
    faults = [result for result in results.values() if result != "right"]
    kinds = [f"{faults.count(kind)} **{kind}**" for kind in dict.fromkeys(faults)]
    return ", ".join([f"{len(results) - len(faults)} of {len(results)} right", *kinds])


def kept() -> dict[str, dict[str, Any]]:
    """Returns the rows of each outcome with their provenance, by release."""
    parts: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())["parts"]
    return parts


def load() -> list[Outcome]:
    """Returns the outcomes that were written last."""
    names = [field.name for field in dataclasses.fields(Outcome)]
    return [Outcome(**{name: part[name] for name in names}) for part in kept().values()]


def write(new: Mapping[str, Mapping[str, Any]]) -> None:
    """Keeps stamped outcomes in place of those of the same releases; updates the document's table.

    Args:
      new: The rows of each outcome with their provenance, by release.
    """
    parts = {**(kept() if RESULTS.exists() else {}), **new}
    ordered = {release: parts[release] for release in sorted(parts, key=release_of)}
    RESULTS.write_text(json.dumps({"parts": ordered}, indent=1) + "\n")
    TABLE.write(rendered(ordered, written_at()))


def main() -> None:
    given = parser_of_releases(__doc__).parse_args()
    outcomes = {}
    is_as_promised = True
    for entry in given.python:
        release, python = entry.split("=", 1)
        with measuring() as measurement:
            outcome = run(release, python)
            outcomes[release] = stamped(dataclasses.asdict(outcome), measurement)
        is_as_promised = is_as_promised and outcome.is_as_promised()
        row = rendered({release: outcomes[release]}, written_at()).splitlines()[-1]
        print(row, flush=True)
    if given.write:
        write(outcomes)
    if not is_as_promised:
        sys.exit(1)


if __name__ == "__main__":
    main()
