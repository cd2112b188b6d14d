"""Tells signals to this process's whole group from signals to this process alone.

The system does not say which it was: a signal of a terminal, of `kill %1` or of timeout(1) looks
like one to a single process. So another process of the group is asked whether it got the signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from shared_pathways_service.cli.witness_process import REPLY_BYTES

__all__ = ["GroupWitness"]

_PROGRAM = Path(__file__).with_name("witness_process.py")
#: Milliseconds after which a witness that has not answered is looked at: it may be stopped.
_LOOK_MS = 50


class GroupWitness:
    """A process in this process's group that sees which signals the group gets; see `running`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._questions = process.stdin
        self._answers = process.stdout

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[GroupWitness]:
        """Runs a witness for the length of the block."""
        # The new process inherits the mask: it must not miss a signal, nor be ended by one.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # It must keep neither a pipeline nor a directory in use.
                stderr=subprocess.DEVNULL,
                cwd="/",
                bufsize=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def received(self) -> set[int]:
        """Returns the signals that the group got since the last call; none if the witness ended.

        All that this process has noticed are among them: Linux signals the members of a group from
        the youngest to the oldest, so the witness comes first.
        """
        # (EPIPE: it was killed.)
        with contextlib.suppress(OSError):
            self._questions.write(b"?")
        answered = select.poll()
        answered.register(self._answers, select.POLLIN)
        while not answered.poll(_LOOK_MS):
            self._continue_if_stopped()
        mask = int.from_bytes(self._answers.read(REPLY_BYTES) or b"", "little")
        return {number for number in range(mask.bit_length()) if mask >> number & 1}

    def _continue_if_stopped(self) -> None:
        """Continues the witness where SIGSTOP stopped the group, and SIGCONT went to us alone."""
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
            if os.WIFSTOPPED(status):
                self._process.send_signal(signal.SIGCONT)
