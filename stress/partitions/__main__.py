"""Partitions, loss, delay and slow links between resource manager, workers and proxies.

    python -m stress.partitions [--schedules 100] [--seed 1] [--out F]

Real servers run in network namespaces, each on a host of its own: a resource manager, three
workers, and four proxies whose tenants want one slice each. In each schedule up to four links (or
all of the resource manager's) lose all or some packets, in one direction or both, are delayed,
limited or reset, for a time that is shorter or longer than the service tolerates. Then all are
healed, and everything must agree again. `stress.partitions.checker` holds the history of the whole
against the promises of docs/partitions.md. Needs Linux and root; changes nothing outside of the
namespaces.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stress.partitions.run import run
from stress.runs_apart import main_apart

#: Seconds for one schedule and its settling, at the most, on average.
_EACH_S = 60.0


def _show(result: Mapping[str, Any]) -> None:
    print(f"schedules       {result['schedules']} in {result['wall_s']:.0f} s")
    for name in ("faults", "decisions", "processes_ended", "settled_s", "double_belief_s"):
        words = ", ".join(f"{key}: {value}" for key, value in result[name].items())
        print(f"{name:<15} {words}")
    print(f"violations      {len(result['violations'])} (aim: 0)")
    for violation in result["violations"]:
        print(f"  {violation}")


def _report(number: int, new: Sequence[str]) -> None:
    print(f"schedule {number}: {'; '.join(new) or 'every promise is kept'}", flush=True)


def _run(schedules: int, seed: int, scratch: Path) -> dict[str, Any]:
    result = run(schedules, seed, scratch, _report)
    _show(result)
    return result


def _samples(result: dict[str, Any]) -> dict[str, list[float]]:
    return {"settled_s": result["each_settled_s"]}


if __name__ == "__main__":
    sys.exit(
        main_apart(
            "partitions", __doc__, _run, _samples, unit="schedules", count=100, each_s=_EACH_S
        )
    )
