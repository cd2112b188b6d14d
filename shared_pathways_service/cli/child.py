"""Runs a command like a shell: lends it the terminal, forwards signals, returns its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

__all__ = [
    "FORWARDED",
    "CommandError",
    "Stopped",
    "ignoring_signals",
    "raise_on_signals",
    "run_child",
]

_Handler = Callable[[int, FrameType | None], Any] | signal.Handlers

#: Signals that are forwarded to the command; not SIGTSTP and the like, which the terminal sends.
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
#: Signals that end a program by default.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class CommandError(Exception):
    """The command could not be started.

    Attributes:
      exit_code: The exit code of a shell: 127 if the command does not exist, otherwise 126.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(BaseException):
    """A signal ended this process before there was a command to forward it to.

    Attributes:
      number: The signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raises `Stopped` on signals that end a program, within the block, so that it is undone."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handlers(_ENDING, stop):
        yield


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignores signals that end a program, within a block that has a deadline."""
    with _handlers(_ENDING, lambda *_: None):
        yield


def run_child(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command to its end, with forwarded signals and working job control.

    The command has its own process group, which gets the terminal if this process had it. So it
    receives signals of the terminal once, and signals sent to this process once.

    Args:
      command: The program, looked up on PATH, and its arguments.
      environment: All of its variables.

    Returns:
      The command's exit code; 128 + n if signal n ended it.

    Raises:
      CommandError: The command could not be started.
    """
    terminal = _terminal_to_lend()
    group: int | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if group is None:
            early.append(number)
        else:
            _signal_group(group, number)

    with _handlers(FORWARDED, forward):
        child = _start(command, environment)
        group = child.pid
        for number in early:
            _signal_group(group, number)
        child.returncode = _wait(group) if terminal is None else _wait_lending(group, terminal)
        group = None  # the number may be reused from here on
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _wait_lending(child: int, terminal: int) -> int:
    """Waits for a child that has the terminal, and may be stopped and continued there."""
    ours = os.getpgrp()
    while True:
        _hand_over(terminal, ours, child)
        # It may have been stopped for using the terminal before that, or together with us.
        _signal_group(child, signal.SIGCONT)
        _, status = os.waitpid(child, os.WUNTRACED)
        _hand_over(terminal, child, ours)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.killpg(ours, signal.SIGSTOP)  # as the terminal would have done; the shell continues us


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment, process_group=0)
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]}: command not found", 127) from error
    except OSError as error:
        raise CommandError(
            f"{command[0]}: cannot be run: {error.strerror or error}", 126
        ) from error


def _terminal_to_lend() -> int | None:
    """Returns our standard input if it is a terminal with us in its foreground.

    Not if our output is a pipe, whose reader may use the terminal itself, as a pager does.
    """
    with contextlib.suppress(OSError):
        if os.tcgetpgrp(0) == os.getpgrp() and not stat.S_ISFIFO(os.fstat(1).st_mode):
            return 0
    return None


def _hand_over(terminal: int, giver: int, taker: int) -> None:
    """Puts another group into the terminal's foreground, if the giver is there now."""
    # A background process is stopped for this, unless it ignores the signal.
    with _handlers((signal.SIGTTOU,), signal.SIG_IGN), contextlib.suppress(OSError):
        if os.tcgetpgrp(terminal) == giver:
            os.tcsetpgrp(terminal, taker)


def _signal_group(group: int, number: int) -> None:
    # After sudo we may not signal the command; a signal handler must not raise for it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextlib.contextmanager
def _handlers(numbers: Sequence[signal.Signals], handler: _Handler) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        for number in numbers:
            # A signal that we were started to ignore (by nohup, say) stays ignored.
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            undo.callback(signal.signal, number, signal.signal(number, handler))
        yield
