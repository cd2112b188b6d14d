"""Runs examples/elastic_train.py as a user does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.processes import REPOSITORY

DEADLINE_S = 400.0


def train(
    directory: Path,
    *arguments: str,
    until: Callable[[str], bool] = lambda _: False,
    under: Sequence[str] = (),
) -> tuple[int, list[str]]:
    """Runs the example to its end, or until a line of its output: then it is killed.

    Args:
      directory: Of the run.
      arguments: Of the example.
      until: Is shown each line.
      under: A command that runs it.
    """
    program = (sys.executable, "examples/elastic_train.py", "--directory", str(directory))
    command = [*under, *program]
    with subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(DEADLINE_S, process.kill)
        with contextlib.ExitStack() as undo:
            undo.callback(watchdog.join)
            undo.callback(watchdog.cancel)
            watchdog.start()
            lines = []
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if until(line):
                    process.kill()
    return process.wait(), lines
