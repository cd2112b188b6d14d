"""Runs examples/elastic_train.py as a user does, step by step."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.deadlines import deadline
from harness.processes import REPOSITORY

DEADLINE_S = deadline(400.0)
_EXAMPLE = "examples/elastic_train.py"
#: Python runs it before a program. After each step the example waits for a byte: otherwise it could
#: be far ahead of a test that acts on what it has read.
_CODE = """
import sys
if sys.orig_argv[1:2] == [{example!r}]:
    def write(text, write=sys.stdout.write, read=open({read!r}, "rb", buffering=0)):
        count = write(text)
        if text.startswith("completed step:"):
            sys.stdout.flush()
            read.read(1)
        return count
    sys.stdout.write = write
"""


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
      until: Is shown each line, before the example goes on.
      under: A command that runs it.
    """
    program = (sys.executable, _EXAMPLE, "--directory", str(directory))
    command = [*under, *program, *arguments]
    with (
        _step_by_step() as (path, go_on),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((path, str(REPOSITORY)))},
        ) as process,
    ):
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
                # The last line of a step.
                if line.startswith("step="):
                    go_on()
    return process.wait(), lines


@contextlib.contextmanager
def _step_by_step() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields a directory for the example's Python path, and a function that lets a step go on."""
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        pipe = Path(directory, "go-on")
        os.mkfifo(pipe)
        code = _CODE.format(example=_EXAMPLE, read=str(pipe))
        Path(directory, "sitecustomize.py").write_text(code)
        # (For both directions, so that no end waits for the other one.)
        with os.fdopen(os.open(pipe, os.O_RDWR), "r+b", buffering=0) as opened:
            yield directory, lambda: opened.write(b".")
