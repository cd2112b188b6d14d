"""A command run as a shell runs it: the terminal is its, signals reach it, its end is ours."""

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
    "deaf_to_signals",
    "raise_on_signals",
    "run_child",
]

_Handler = Callable[[int, FrameType | None], Any] | signal.Handlers

#: What is passed on to the command. Not among them: SIGTSTP and its kin, which the terminal sends.
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
#: What ends a program that does nothing about it.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class CommandError(Exception):
    """The command could not be started.

    Attributes:
      exit_code: What a shell would end with: 127 when there is no such command, else 126.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(BaseException):
    """A signal asked this process to end, before there was a command to pass it on to.

    Attributes:
      number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Has signals that end a program raise `Stopped` within the block, so that it is undone."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handlers(_ENDING, stop):
        yield


@contextlib.contextmanager
def deaf_to_signals() -> Iterator[None]:
    """Lets signals that end a program pass unheard within the block, which has a deadline."""
    with _handlers(_ENDING, lambda *_: None):
        yield


def run_child(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command to its end, with signals passed on and job control as without us.

    The command has a process group of its own, which gets the terminal if we had it: what is
    typed there reaches it once, and what is sent to us reaches it through us, once too.

    Args:
      command: The program, looked up on PATH, and its arguments.
      environment: All of its variables.

    Returns:
      Its exit code; 128 + n if signal n ended it.

    Raises:
      CommandError: It could not be started.
    """
    terminal = _terminal_to_lend()
    group: int | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if group is None:
            early.append(number)
        else:
            _signal_group(group, number)

    with _handlers(FORWARDED, pass_on):
        child = _start(command, environment)
        group = child.pid
        for number in early:
            _signal_group(group, number)
        child.returncode = _wait(group) if terminal is None else _wait_lending(group, terminal)
        group = None  # its number may be another's from here on
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _wait_lending(child: int, terminal: int) -> int:
    """Waits for a child that has the terminal, and is stopped and continued from there."""
    ours = os.getpgrp()
    while True:
        _hand_over(terminal, ours, child)
        # It may have been stopped for touching the terminal before that, or together with us.
        _signal_group(child, signal.SIGCONT)
        _, status = os.waitpid(child, os.WUNTRACED)
        _hand_over(terminal, child, ours)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.killpg(ours, signal.SIGSTOP)  # as the terminal would have; the shell continues us


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
    """Returns our standard input if it is a terminal that has us in the foreground.

    Not in front of a pipe: its reader may want the terminal itself, as a pager does.
    """
    with contextlib.suppress(OSError):
        if os.tcgetpgrp(0) == os.getpgrp() and not stat.S_ISFIFO(os.fstat(1).st_mode):
            return 0
    return None


def _hand_over(terminal: int, giver: int, taker: int) -> None:
    """Makes another group the terminal's foreground, if the giver is that now."""
    # Who is in the background is stopped for trying, unless it ignores the signal.
    with _handlers((signal.SIGTTOU,), signal.SIG_IGN), contextlib.suppress(OSError):
        if os.tcgetpgrp(terminal) == giver:
            os.tcsetpgrp(terminal, taker)


def _signal_group(group: int, number: int) -> None:
    # What the command became by sudo may not be ours to signal; a handler must not raise for it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextlib.contextmanager
def _handlers(numbers: Sequence[signal.Signals], handler: _Handler) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        for number in numbers:
            # What we were started to ignore (by nohup, say) the command is to ignore as well.
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            undo.callback(signal.signal, number, signal.signal(number, handler))
        yield
