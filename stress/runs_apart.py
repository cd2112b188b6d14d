"""Runs a stress program in network namespaces of its own, from its options to its result."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.deadlines import deadline
from harness.network.namespaces import end_with_owner, is_possible, mount_scratch, run_apart
from harness.own_service import own_directories
from harness.results import exit_code, measured, write_result

__all__ = ["main_apart"]

#: Seconds for the start.
_START_S = deadline(180.0)


def main_apart(
    name: str,
    document: str | None,
    run: Callable[[int, int, Path], dict[str, Any]],
    samples: Callable[[dict[str, Any]], Mapping[str, Sequence[float]]],
    *,
    unit: str,
    count: int,
    each_s: float,
) -> int:
    """Parses the options, runs in namespaces, writes the result; returns the exit code.

    Args:
      name: Of the module in `stress`.
      document: Its docstring.
      run: Takes the number of units, a seed and a directory. It failed if it raises, or its result
        has ``violations``.
      samples: Returns the values of figures that a result has repeatedly, by name.
      unit: What is counted, e.g. ``rounds``.
      count: The default number of them.
      each_s: Seconds for one of them, at the most, on average.
    """
    parser = argparse.ArgumentParser(description=document.splitlines()[0] if document else None)
    parser.add_argument(f"--{unit}", dest="count", metavar="N", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", "--json", type=Path, help="where the JSON goes")
    parser.add_argument("--logs", type=Path, help="where the servers' logs go after a failure")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        if not is_possible():
            parser.error("needs Linux, root, util-linux, iproute2 and /dev/net/tun")
        return run_apart(f"stress.{name}", ["--inside", *sys.argv[1:]])
    end_with_owner(_START_S + deadline(each_s * options.count))
    tempfile.tempdir = str(mount_scratch())
    is_good = False
    with measured():
        with own_directories() as scratch:
            try:
                result = run(options.count, options.seed, scratch)
                is_good = not result.get("violations")
            finally:
                if options.logs is not None and not is_good:
                    shutil.copytree(scratch, options.logs, dirs_exist_ok=True)
        write_result(name, result, options.out, samples(result))
    return exit_code(result.get("violations", ()))
