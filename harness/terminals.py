"""Pseudo-terminals: with a program in them, and closed while somebody writes to them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import psutil
import pytest

from harness.deadlines import deadline, wait_until

__all__ = ["Screen", "screen", "terminal"]

#: Becomes its arguments, as the leader of a session that its standard input controls.
_IN_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # (Python ignores it.)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_READ_BYTES = 4096


@contextlib.contextmanager
def terminal() -> Iterator[tuple[TextIO, Callable[[], None]]]:
    """Yields the stream of a terminal, and a function that closes the terminal."""
    ours, theirs = os.openpty()
    stream = os.fdopen(theirs, "w", buffering=1)
    with contextlib.ExitStack() as undo:
        # What could not be written is still there to be flushed.
        undo.enter_context(contextlib.suppress(OSError))
        undo.callback(stream.close)
        master = undo.enter_context(os.fdopen(ours, "rb", buffering=0))

        def close() -> None:
            master.close()
            with pytest.raises(OSError, match="Input/output"):
                stream.write("as it is with a terminal that was closed\n")

        yield stream, close


class Screen:
    """A terminal with a program in it that leads its session: what a person sees and does there.

    Attributes:
      process: The program.
      shown: All that was written to the terminal and read by `expect`.
    """

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master
        self._is_open = True
        self._passed = 0

    def type(self, text: str) -> None:
        """Types text; `\\x03` is Ctrl-C."""
        os.write(self._master, text.encode())

    def expect(self, text: str) -> str:
        """Waits until text is shown, after what was expected last; returns what came before it."""
        self._read_until(text, lambda: text in self.shown[self._passed :])
        before, _, _ = self.shown[self._passed :].partition(text)
        self._passed += len(before) + len(text)
        return before

    def expect_times(self, text: str, times: int) -> None:
        """Waits until text was shown this many times in all, wherever."""
        self._read_until(f"{times} times {text}", lambda: self.shown.count(text) >= times)

    def _read_until(self, what: str, is_shown: Callable[[], bool]) -> None:
        end = time.monotonic() + deadline(60.0)
        while not is_shown():
            left = end - time.monotonic()
            assert left > 0, f"waited for {what!r}: {self.shown!r}"
            if not select.select([self._master], [], [], left)[0]:
                continue
            try:
                data = os.read(self._master, _READ_BYTES)
            except OSError as error:  # the last process of the terminal has ended
                raise AssertionError(f"the end, before {what!r}: {self.shown!r}") from error
            self.shown += data.decode(errors="replace")

    def foreground(self) -> int:
        """Returns the process group in the foreground."""
        return os.tcgetpgrp(self._master)

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the window."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """Closes the window."""
        if self._is_open:
            self._is_open = False
            os.close(self._master)

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of its session, without its leader."""
        found = []
        for pid in psutil.pids():
            # (Not by psutil, which reads a file for each process of the machine.)
            with contextlib.suppress(OSError, psutil.Error):
                if pid == self.process.pid or os.getsid(pid) != self.process.pid:
                    continue
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_until_empty(self) -> None:
        """Waits until only the leader of the session is left, or none of it."""
        wait_until("the end of the session's processes", lambda: not self.processes())

    def end(self) -> None:
        """Ends all of its session, and closes the window."""
        self.process.kill()
        self.process.wait()
        wait_until("the end of all", lambda: not self._kill())
        self.close()

    def _kill(self) -> Sequence[psutil.Process]:
        """Kills the processes that `processes` finds; returns them."""
        found = self.processes()
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return found


@contextlib.contextmanager
def screen(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[Screen]:
    """Runs a program as the leader of a terminal's session; all of it ends with the block."""
    master, slave = os.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _IN_TERMINAL, *command],
            env=environment,
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
    finally:
        os.close(slave)
    shown = Screen(process, master)
    try:
        yield shown
    finally:
        shown.end()
