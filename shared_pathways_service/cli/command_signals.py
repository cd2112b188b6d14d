"""Passes signals on to a command, in the two positions in which it may run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shared_pathways_service.cli.group_witness import GroupWitness
from shared_pathways_service.cli.signal_queue import SignalQueue

__all__ = [
    "FORWARDED",
    "CommandSignals",
    "SignalsInOurGroup",
    "SignalsInOwnGroup",
    "arrived_now",
]

#: Those that cannot be caught, that report what a process itself did, or that the terminal sends to
#: processes in its background.
_NOT_FORWARDED = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
}
#: Signals that are forwarded to the command.
FORWARDED: tuple[int, ...] = tuple(sorted(signal.valid_signals() - _NOT_FORWARDED))

#: Signals that a stopped command should get as well, and so is continued after them.
_CONTINUED_AFTER = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
#: Signals of the terminal that stop processes in its background.
_BACKGROUND = {signal.SIGTTIN, signal.SIGTTOU}
#: For a signal, the pending one that the system forgets when it comes.
_CANCELLED_BY: Mapping[int, int] = {
    signal.SIGCONT: signal.SIGTSTP,
    signal.SIGTSTP: signal.SIGCONT,
}


class CommandSignals(Protocol):
    """How a command gets the signals to this process."""

    def begin(self, early: Sequence[int]) -> None:
        """Passes on signals that arrived before the command was there, and others at its start."""

    def pass_on(self, numbers: Sequence[int]) -> None:
        """Passes on signals that this process got, in this order."""

    def stop_with(self, number: int) -> None:
        """Called when signal `number` has stopped the command."""

    def end(self) -> None:
        """Called when the command has ended."""


class SignalsInOwnGroup:
    """Signals of a command that leads its own process group, which no terminal controls.

    The whole group gets them: a shell does not pass SIGTERM on to the program that it waits for.

    Args:
      group: The command.
    """

    def __init__(self, group: int) -> None:
        self._group = group

    def begin(self, early: Sequence[int]) -> None:
        """Passes on signals that arrived before the command was there."""
        self.pass_on(early)

    def pass_on(self, numbers: Sequence[int]) -> None:
        """Passes on signals that this process got, in this order."""
        for number in numbers:
            _send(os.killpg, self._group, number)

    def stop_with(self, _number: int) -> None:
        """Does nothing: no shell would notice that this process is stopped, and continue it."""

    def end(self) -> None:
        """Does nothing."""


class SignalsInOurGroup:
    """Signals of a command in this process's group, which a terminal controls.

    The command itself gets what the terminal and others send to the group. This process passes on
    what was sent to this process alone.

    Args:
      command: The command.
      terminal: A descriptor of the controlling terminal.
      queue: The signals to this process.
      witness: Notices signals to the group; started before the command.
    """

    def __init__(
        self, command: int, terminal: int, queue: SignalQueue, witness: GroupWitness
    ) -> None:
        self._command = command
        self._terminal = terminal
        self._queue = queue
        self._witness = witness
        self._had_terminal = False
        self._lent_to: int | None = None
        self._on_their_way: set[int] = set()

    def begin(self, early: Sequence[int]) -> None:
        """Passes on signals that arrived before the command was there, and others at its start.

        Those of the group may have come just before it was there, or have reached it. A second one
        changes nothing, unless the command catches it: a program that tidies up on a first Ctrl-C
        gives up on a second. Such a command has been there for a while.
        """
        arrived, of_group = self._arrived_now([])
        caught = _caught_by(self._command)
        for number in [*early, *(n for n in arrived if n not in of_group & caught)]:
            self._send(number)

    def pass_on(self, numbers: Sequence[int]) -> None:
        """Passes on signals that this process got, in this order."""
        arrived, of_group = self._arrived_now(numbers)
        if signal.SIGCONT in arrived and self._had_terminal:
            self._lend_terminal()
        # A program may have made a group of its own: an interactive shell does.
        if self._group_of_command() == os.getpgrp():
            arrived = [n for n in _without_cancelled(arrived) if n not in of_group]
        for number in arrived:
            self._send(number)

    def stop_with(self, number: int) -> None:
        """Stops this process as the command was stopped, until both are continued."""
        group, foreground = self._group_of_command(), self._foreground()
        if number in _BACKGROUND and foreground == os.getpgrp() != group:
            # Programs that make a group of their own do so to signal what they start. Without this
            # process they would already lead the group in the foreground.
            self._lend_terminal()
            self._send(signal.SIGCONT)
            return
        self._had_terminal = foreground == group != os.getpgrp()
        if not self._stop(number):
            return
        arrived = self._queue.read()
        if signal.SIGCONT not in arrived:
            # The system did not stop this process, as no shell is there that could continue it.
            arrived = [*arrived, signal.SIGCONT]
        self.pass_on(arrived)

    def end(self) -> None:
        """Takes the terminal back from a group of the command's own."""
        if self._lent_to is not None and self._foreground() == self._lent_to:
            self._put_into_foreground(os.getpgrp())

    def _stop(self, number: int) -> bool:
        """Stops this process, unless the command is not stopped any more; returns whether it is."""
        if number == signal.SIGSTOP:  # (It can be neither blocked nor handled.)
            if is_stopped := _is_stopped(self._command):
                signal.raise_signal(number)
            return is_stopped
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        # It is pending now: a SIGCONT to the group cancels it, also one that comes before the stop.
        signal.raise_signal(number)
        is_stopped = _is_stopped(self._command)
        before = signal.signal(number, signal.SIG_DFL if is_stopped else signal.SIG_IGN)
        if self._had_terminal and number in signal.sigpending():
            # The terminal would have stopped all of a pipeline.
            os.killpg(os.getpgrp(), number)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(number, before)
        return is_stopped

    def _arrived_now(self, numbers: Sequence[int]) -> tuple[list[int], set[int]]:
        """Returns these signals with those that have just arrived, and which the group got."""
        arrived, of_group = arrived_now(self._queue, self._witness, numbers)
        on_their_way = of_group - set(arrived)
        of_group |= self._on_their_way
        # (Until the next ones only: the system may have merged two.)
        self._on_their_way = on_their_way
        return arrived, of_group

    def _send(self, number: int) -> None:
        group = self._group_of_command()
        if number == signal.SIGCONT and group != os.getpgrp():
            _send(os.killpg, group, number)
        else:
            _send(os.kill, self._command, number)

    def _group_of_command(self) -> int:
        # (A process that was not waited for still has its group.)
        return os.getpgid(self._command)

    def _foreground(self) -> int | None:
        """Returns the group in the terminal's foreground; None if the terminal was closed."""
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(self._terminal)
        return None

    def _lend_terminal(self) -> None:
        """Puts the command's own group into the foreground if this process is there."""
        if self._foreground() == os.getpgrp():
            self._lent_to = self._group_of_command()
            self._put_into_foreground(self._lent_to)

    def _put_into_foreground(self, group: int) -> None:
        with contextlib.suppress(OSError):  # (It was closed.)
            os.tcsetpgrp(self._terminal, group)


def arrived_now(
    queue: SignalQueue, witness: GroupWitness, numbers: Sequence[int] = ()
) -> tuple[list[int], set[int]]:
    """Returns these signals with those that have just arrived, and which signals the group got.

    The latter may contain some that are still on their way to this process.
    """
    arrived = [*numbers, *queue.read()]
    of_group: set[int] = set()
    while True:
        # Of what has arrived here, the witness knows whether the group got it.
        of_group |= witness.received()
        if not (late := queue.read()):
            return arrived, of_group
        arrived += late


def _is_stopped(process: int) -> bool:
    """Whether a process that was stopped still is: neither continued nor ended."""
    return _system_status(process).get("State", "T").startswith("T")


def _caught_by(process: int) -> set[int]:
    """Returns the signals for which a process has handlers."""
    mask = int(_system_status(process).get("SigCgt", "0"), 16)
    return {number + 1 for number in range(mask.bit_length()) if mask >> number & 1}


def _system_status(process: int) -> Mapping[str, str]:
    """Returns what Linux knows of a process; nothing on macOS, or if it hides those of others."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
    return {}


def _send(send: Callable[[int, int], None], target: int, number: int) -> None:
    # After sudo we may not signal the command.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)
        if number in _CONTINUED_AFTER:
            send(target, signal.SIGCONT)


def _without_cancelled(numbers: Sequence[int]) -> list[int]:
    """Leaves out stops before a SIGCONT, and the reverse: the witness has not kept them."""
    last = next((number for number in reversed(numbers) if number in _CANCELLED_BY), None)
    return [n for n in numbers if last is None or n != _CANCELLED_BY[last]]
