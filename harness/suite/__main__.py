"""Runs the project's tests, as `scripts/test` does.

usage: python -m harness.suite [--unit | --all | --long | --files PATH...]
  without an option: the layers unit and local
  --unit    the layer unit
  --all     all layers, and the short form of scripts/compat
  --long    what takes hours: what is marked as thorough, property tests with many examples of a new
            seed, the layer long, all releases of JAX, tests that kill or race ten times, a proof
            that the gate on speed sees what is slow (images, conformance and soaks have commands of
            their own: CONTRIBUTING.md)
  --files   all tests of some files and folders
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.suite.phases import files_form, form_of, long_form, unit_form
from harness.suite.run import Run
from harness.suite.running import interrupt_all
from harness.suite.runs import runs_in


def terminated(*_: object) -> None:
    """Ends what runs, as Ctrl-C does, so that no test goes on."""
    interrupt_all()
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Runs what the arguments name; returns the exit status."""
    # (A process may be bound to a part of them.)
    can_tell = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if can_tell else os.cpu_count() or 1
    match list(arguments):
        case [] | ["--all"]:
            form = form_of(everything=bool(arguments), cores=cores)
        case ["--unit"]:
            form = unit_form(cores=cores)
        case ["--long"]:
            form = long_form(seed=random.getrandbits(32), cores=cores)
        case ["--files", *paths] if paths:
            if absent := [path for path in paths if not Path(path).exists()]:
                print(f"error: no such file or folder: {' '.join(absent)}", file=sys.stderr)
                return 2
            form = files_form(paths, cores=cores)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    signal.signal(signal.SIGTERM, terminated)
    # (A shell lets what it runs in the background ignore it, and so would all that runs here.)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return Run(form, runs_in()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
