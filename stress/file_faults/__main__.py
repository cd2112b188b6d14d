"""Each file operation of clients, commands, agents, services, training fails: full or bad disks.

    python -m stress.file_faults [--step 1] [--role agent …] [--error ENOSPC …] [--at-once 5]
        [--out result.json]

A program runs again and again: the first time the first operation below a directory and all after
it fail in the processes of one role, then the second one and so on, until none fails any more.
Operations are those that open, make, rename and remove files, and each write, sync and close. Each
time the program must compute right, or get an error that names the directory, its setting and the
reason. Nothing may be left behind but what `sps reap` removes; a job that was accepted must run
once there is room again, or its state say why not; a checkpoint that was reported must be
restored. Ends with 1 if that was not so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from harness.results import exit_code, measured, write_result
from stress.file_faults.roles import ERRORS, ROLES, found_with


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--role", action="append", choices=ROLES)
    parser.add_argument("--error", action="append", choices=ERRORS)
    parser.add_argument("--at-once", type=int, default=5, help="programs side by side")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    counts: dict[str, int] = {}
    wrong: list[str] = []
    began = time.monotonic()
    # (Directories and the fault are set by variables of a process.)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.at_once, mp_context=context) as processes:
        started = {
            f"{role}, {error}": processes.submit(found_with, role, error, arguments.step)
            for role in arguments.role or ROLES
            for error in arguments.error or ERRORS
        }
        for name, found in started.items():
            each = found.result()
            counts[name] = len(each)
            wrong += filter(None, each)
            print(f"{name}: {len(each)} programs", flush=True)
    each_s = (time.monotonic() - began) / sum(counts.values())
    print(f"{sum(counts.values())} programs, {each_s:.1f} s each; {len(wrong)} wrong (aim: 0)")
    result = {"programs": counts, "wrong": wrong}
    name = arguments.out.stem if arguments.out else "file_faults"
    write_result(name, result, arguments.out, {"programs": list(counts.values())})
    return exit_code(wrong)


if __name__ == "__main__":
    sys.exit(main())
