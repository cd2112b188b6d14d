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

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.network.namespaces import end_with_owner, is_possible, mount_scratch, run_apart
from harness.own_service import own_directories, write_result
from stress.partitions.run import run

#: Seconds for one schedule and its settling, at the most, on average.
_EACH_S, _START_S = 60.0, 180.0


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


def main() -> int:
    """Runs the schedules in namespaces of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", "--json", type=Path, help="where the JSON goes")
    parser.add_argument("--logs", type=Path, help="where the servers' logs go after violations")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        if not is_possible():
            parser.error("needs Linux, root, util-linux, iproute2 and /dev/net/tun")
        return run_apart("stress.partitions", ["--inside", *sys.argv[1:]])
    end_with_owner(_START_S + _EACH_S * options.schedules)
    tempfile.tempdir = str(mount_scratch())
    with own_directories() as scratch:
        result = run(options.schedules, options.seed, scratch, _report)
        if options.logs is not None and result["violations"]:
            shutil.copytree(scratch, options.logs, dirs_exist_ok=True)
    _show(result)
    write_result("partitions", result, options.out)
    return int(bool(result["violations"]))


if __name__ == "__main__":
    sys.exit(main())
