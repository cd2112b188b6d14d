"""Passes signals on to a command, in the two positions in which it may run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
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
#: For a signal, the one before it that has no effect any more.
_VOIDED_BY: Mapping[int, int] = {
    signal.SIGCONT: signal.SIGTSTP,
    signal.SIGTSTP: signal.SIGCONT,
}
#: Seconds after its start up to which a command has hardly begun.
_YOUNG_AGE_S = 0.005


class CommandSignals(Protocol):
    """How a command gets the signals to this process."""

    def begin(self, early: Sequence[int], age_s: float) -> None:
        """Passes on signals that arrived before the command was there, or at its start.

        Args:
          early: Those from before its start.
          age_s: Seconds since its start.
        """

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

    def begin(self, early: Sequence[int], _age_s: float) -> None:
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

    def begin(self, early: Sequence[int], age_s: float) -> None:
        """Passes on signals that arrived before the command was there, or at its start.

        Those of the group may have come just before it was there, or may have reached it. A second
        one changes nothing at the very start. After that it would: a program that tidies up on a
        first Ctrl-C gives up on a second.
        """
        arrived, of_group = arrived_now(self._queue, self._witness)
        if age_s < _YOUNG_AGE_S:
            of_group = set()
        for number in [*early, *(number for number in arrived if number not in of_group)]:
            self._send(number)

    def pass_on(self, numbers: Sequence[int]) -> None:
        """Passes on signals that this process got, in this order."""
        arrived, of_group = arrived_now(self._queue, self._witness, numbers)
        # A program may have made a group of its own: an interactive shell does.
        has_left = self._group_of_command() != os.getpgrp()
        for number in _without_void(arrived):
            if number == signal.SIGCONT and self._had_terminal:
                self._lend_terminal()
            if has_left or number not in of_group:
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
        arrived = [*self._queue.read()]
        # (SIGSTOP to the group stops both, and SIGCONT may have ended that already.)
        if signal.SIGCONT not in _without_void(arrived):
            with _default(number):
                if self._had_terminal:
                    # The terminal would have stopped all of a pipeline.
                    os.killpg(os.getpgrp(), number)
                else:
                    signal.raise_signal(number)
            arrived += self._queue.read()
        if signal.SIGCONT not in _without_void(arrived):
            # The system did not stop this process, as no shell is there that could continue it.
            arrived.append(signal.SIGCONT)
        self.pass_on(arrived)

    def end(self) -> None:
        """Takes the terminal back from a group of the command's own."""
        if self._lent_to is not None and self._foreground() == self._lent_to:
            self._put_into_foreground(os.getpgrp())

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
    """Returns these signals with those that have just arrived, and which of them the group got."""
    arrived = [*numbers, *queue.read()]
    of_group: set[int] = set()
    while True:
        of_group |= witness.received()
        # What the witness reports has arrived here too by now.
        if not (late := queue.read()):
            return arrived, of_group
        arrived += late


@contextlib.contextmanager
def _default(number: int) -> Iterator[None]:
    """Gives a signal its default effect in the block."""
    if number == signal.SIGSTOP:  # (It has no other.)
        yield
        return
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


def _send(send: Callable[[int, int], None], target: int, number: int) -> None:
    # After sudo we may not signal the command.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)
        if number in _CONTINUED_AFTER:
            send(target, signal.SIGCONT)


def _without_void(numbers: Sequence[int]) -> list[int]:
    """Leaves out stops before a SIGCONT, and the reverse: the system forgets these, too."""
    void: int | None = None
    for number in reversed(numbers):
        if number in _VOIDED_BY:
            void = _VOIDED_BY[number]
            break
    return [number for number in numbers if number != void]
