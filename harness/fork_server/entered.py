"""Makes a forked process one on a stand-in for a machine (`harness.machines`).

A command there is a Python program after `nsenter` and a shell that changes to a directory. What
both of them do is done here, without another program: the process that was forked stands for
`nsenter`, and its child is the program.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Sequence

from harness.fork_server.c_library import enter_namespace
from harness.fork_server.contained import end_as
from harness.fork_server.process_title import show_as

__all__ = ["IN_DIRECTORY", "SPACES", "Entry", "enter", "entry_of"]

#: What `nsenter` is given beside the process to whose machine it leads.
SPACES = ("--pid", "--mount", "--uts")
#: Before the directory and the program. (`nsenter` moves to the root.)
IN_DIRECTORY = ("sh", "-c", 'cd "$0" && exec "$@"')
_TARGET = "--target="
_NAMES = ("uts", "pid", "mnt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A command on a machine.

    Attributes:
      target: The id of a process of the machine.
      directory: Where the command runs.
      command: The command itself.
    """

    target: int
    directory: str
    command: list[str]


def entry_of(arguments: Sequence[str]) -> Entry | None:
    """Returns what a command line runs on a machine; None: it is no such command line."""
    if len(arguments) < 2 or arguments[0] != "nsenter" or not arguments[1].startswith(_TARGET):
        return None
    fixed, rest = (*SPACES, *IN_DIRECTORY), list(arguments[2:])
    if tuple(rest[: len(fixed)]) != fixed or len(rest) == len(fixed):
        return None
    directory, *command = rest[len(fixed) :]
    target = int(arguments[1].removeprefix(_TARGET))
    return Entry(target=target, directory=directory, command=command)


def enter(target: int) -> None:
    """Returns in a child, on the machine; this process lasts as long as that, and ends as it does.

    Raises:
      OSError: This user may not, or the machine has ended.
    """
    words = ["nsenter", f"{_TARGET}{target}", *SPACES]
    show_as([os.fsencode(word) for word in words], [])
    # (With the last one, /proc is the machine's.)
    spaces = {name: os.open(f"/proc/{target}/ns/{name}", os.O_RDONLY) for name in _NAMES}
    for name, space in spaces.items():
        enter_namespace(space, f"the {name} namespace of process {target}")
        os.close(space)
    if child := os.fork():
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        end_as(child)
