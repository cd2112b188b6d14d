"""Runs commands of `sps` as children of the kernel.

A process of its own, because the kernel runs an event loop, and commands have their own signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.location import with_package_path

__all__ = ["CommandFailed", "run_command", "start_command"]


class CommandFailed(Exception):  # noqa: N818 - reads as what happened
    """A command has failed; the text is the last line that it printed."""


@contextlib.contextmanager
def start_command(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Starts `sps` with pipes for its output, and ends it after the block."""
    theirs, ours = os.pipe()
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, ours)
        with os.fdopen(theirs, "rb") as watched:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "shared_pathways_service.magics.child"),
                    *(str(watched.fileno()), *words),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=with_package_path(os.environ),
                pass_fds=[watched.fileno()],
                # An interrupt of the kernel ends the command of its cell, and no page.
                start_new_session=True,
            )
        undo.enter_context(process)
        undo.callback(_end, process)
        yield process


def run_command(words: Sequence[str]) -> None:
    """Runs `sps` in the cell: prints its output, and passes an interrupt on to it.

    Raises:
      CommandFailed: Its exit code is not 0.
    """
    with start_command(words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last: list[str] = []
        beside = threading.Thread(target=_print_but_last, args=(process.stderr, last), daemon=True)
        beside.start()
        try:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeouts.COMMAND_INTERRUPT.s)
                beside.join(timeouts.COMMAND_INTERRUPT.s)
            sys.stderr.write("".join(last))
            raise
        beside.join()
    error = "".join(last).strip()
    if code:
        raise CommandFailed(error or f"sps {words[0]} has failed with exit code {code}")
    if error:
        sys.stderr.write(f"{error}\n")


def _print_but_last(stream: IO[str], last: list[str]) -> None:
    """Prints the lines of a stream, except the last one, which may be the command's error."""
    for line in stream:
        if last:
            sys.stderr.write(last.pop())
        last.append(line)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeouts.COMMAND_INTERRUPT.s)
    except subprocess.TimeoutExpired:
        process.kill()
