"""Runs a command as if this process were not there: its terminal, its signals, its end."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FrameType

from shared_pathways_service.cli.command_signals import (
    FORWARDED,
    CommandSignals,
    SignalsInOurGroup,
    SignalsInOwnGroup,
    arrived_now,
)
from shared_pathways_service.cli.group_witness import GroupWitness
from shared_pathways_service.cli.signal_queue import SignalQueue, handling
from shared_pathways_service.runtime.terminal import LastingStream

__all__ = [
    "FORWARDED",
    "CommandError",
    "Stopped",
    "end_by_signal",
    "ignoring_signals",
    "is_first_process",
    "raise_on_signals",
    "run_child",
]

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
    """A signal ended the command, or this process before there was a command.

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

    with handling(_ENDING, stop):
        yield


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Ignores signals that end a program, within a block that has a deadline."""
    with handling(_ENDING, lambda *_: None):
        yield


def run_child(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command to its end.

    With a controlling terminal the command is in the process group of this process, as by env(1):
    the terminal's signals and its job control reach both, also in a pipeline, and when one is
    stopped, so is the other. A signal that was sent to this process alone is passed on.

    Without one the command leads its own group, which gets every signal that this process gets.

    It inherits all descriptors that this process inherited, and the signals that are blocked or
    ignored, except SIGCHLD: programs that wait for children need it as much as this process does.

    As the first process of a container this one gets the orphans of the command, and reaps them.

    Args:
      command: The program, looked up on PATH, and its arguments.
      environment: All of its variables.

    Returns:
      The command's exit code; -n if signal n ended it.

    Raises:
      CommandError: The command could not be started.
      Stopped: A signal came before it was started.
    """
    with contextlib.ExitStack() as undo:
        queue = undo.enter_context(SignalQueue.taking(_forwarded_now()))
        terminal = undo.enter_context(_controlling_terminal())
        signals: CommandSignals
        if terminal is None:
            early: Sequence[int] = _unless_ending(queue.read())
            child, own = _start(command, environment, process_group=0)
            signals = SignalsInOwnGroup(child.pid)
        else:
            witness = undo.enter_context(GroupWitness.running())
            early = _unless_ending(arrived_now(queue, witness)[0])
            child, own = _start(command, environment, process_group=None)
            # What the command does on the terminal from the background stops it, and then us.
            # (Not before it is started: it would inherit this.)
            undo.enter_context(handling((signal.SIGTTIN, signal.SIGTTOU), signal.SIG_IGN))
            signals = SignalsInOurGroup(child.pid, terminal, queue, witness)
        signals.begin(early)
        child.returncode = _wait(child.pid, queue, signals, own)
        signals.end()
        return child.returncode


def end_by_signal(number: int) -> int:
    """Ends this process by a signal, as the command was ended, if it has a controlling terminal.

    A shell judges by that: it ends a loop or a script after Ctrl-C, and reports a crash.

    Returns:
      128 + n, the exit code that shells report for signal n; only if this process continues.
    """
    with _controlling_terminal() as terminal:
        has_terminal = terminal is not None
    if has_terminal:
        for stream in (sys.stdout, sys.stderr):
            LastingStream(stream).flush()
        # The command has left a core dump, if one was wanted.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):  # (SIGKILL has its default effect.)
            signal.signal(number, signal.SIG_DFL)
        # (The first process of a container cannot end itself by a signal.)
        os.kill(os.getpid(), number)
    return 128 + number


def _forwarded_now() -> list[int]:
    """Returns the signals to forward, without those for which other code has a handler."""
    return [
        number
        for number in FORWARDED
        if number in _ENDING or signal.getsignal(number) is signal.SIG_DFL
    ]


def _unless_ending(numbers: Sequence[int]) -> Sequence[int]:
    """Returns signals that arrived before the command is there; raises `Stopped` for some."""
    if ending := [number for number in numbers if number in _ENDING]:
        raise Stopped(ending[0])
    return numbers


@contextlib.contextmanager
def _controlling_terminal() -> Iterator[int | None]:
    """Yields a descriptor of the terminal that controls this process, whatever its streams are."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        yield None
        return
    try:
        yield terminal
    finally:
        os.close(terminal)


def is_first_process() -> bool:
    """Whether this is the first process of a container, to which all orphans in there come."""
    return os.getpid() == 1


def _reap_orphans(own: Collection[int]) -> None:
    for pid in _children().difference(own):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    import psutil  # noqa: PLC0415 - in the first process of a container only

    return {process.pid for process in psutil.Process().children()}


def _wait(
    child: int, queue: SignalQueue, signals: CommandSignals, own: Collection[int] | None
) -> int:
    """Waits for the end of the command; returns its exit code, or -n for signal n.

    Args:
      child: The command's process.
      queue: The signals of this process; the end of any child is among them.
      signals: Where they go.
      own: Children that are not orphans, whose ends others of this process want to know; None: this
        process gets no orphans.
    """
    while True:
        if own is not None:
            _reap_orphans(own)
        if numbers := queue.read():
            signals.pass_on(numbers)
        changed, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if not changed:
            queue.wait()
        elif os.WIFSTOPPED(status):
            signals.stop_with(os.WSTOPSIG(status))
        else:
            return os.waitstatus_to_exitcode(status)


def _start(
    command: Sequence[str], environment: Mapping[str, str], *, process_group: int | None
) -> tuple[subprocess.Popen[bytes], Collection[int] | None]:
    """Starts the command; returns it, and the children that are no orphans (`_wait`)."""
    # (Listed before the command runs: it may leave orphans at once.)
    others = _children() if is_first_process() else None
    try:
        child = subprocess.Popen(
            command, env=environment, process_group=process_group, close_fds=False
        )
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]}: command not found", 127) from error
    except OSError as error:
        raise CommandError(
            f"{command[0]}: cannot be run: {error.strerror or error}", 126
        ) from error
    return child, None if others is None else {*others, child.pid}
