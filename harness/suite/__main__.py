"""Runs the project's tests, as `scripts/test` does.

usage: python -m harness.suite [--unit | --all | --long | [--workers N] --files PATH...]
  without an option: the layers unit and local
  --unit    the layer unit
  --all     all layers, and the short form of scripts/compat
  --long    what takes hours: what is marked as thorough, property tests with many examples of a new
            seed, the layer long, all releases of JAX, tests that kill or race ten times, a proof
            that the gate on speed sees what is slow (images, conformance and soaks have commands of
            their own: CONTRIBUTING.md)
  --files   all tests of some files and folders
  --workers processes that run tests at once; each imports and collects first, so that few tests end
            sooner with one
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


class Ending:
    """Ends a run, so that no test goes on.

    What runs cleans up after an interrupt, and a second one would cut that off. So a request to end
    after an interrupt, which has reached what runs as well, changes nothing.
    """

    def __init__(self) -> None:
        self._has_begun = False

    def on_interrupt(self, *_: object) -> None:
        """Handles Ctrl-C, which what runs has received as well."""
        self._has_begun = True
        raise KeyboardInterrupt

    def on_terminate(self, *_: object) -> None:
        """Handles SIGTERM as Ctrl-C."""
        if self._has_begun:
            return
        interrupt_all()
        self.on_interrupt()


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
            form = files_form(paths, cores=cores)
        case ["--workers", count, "--files", *paths] if count.isdecimal() and int(count) and paths:
            form = files_form(paths, cores=cores, workers=int(count))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    if absent := [path for path in form.paths if not Path(path).exists()]:
        print(f"error: no such file or folder: {' '.join(absent)}", file=sys.stderr)
        return 2
    ending = Ending()
    signal.signal(signal.SIGTERM, ending.on_terminate)
    # (A shell lets what it runs in the background ignore it, and so would all that runs here.)
    signal.signal(signal.SIGINT, ending.on_interrupt)
    return Run(form, runs_in()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
