"""Makes a forked process what the testbed's containers are: process 1 of namespaces of its own.

A container's command is a Python program after `setpriv` and `unshare`. What both of them do with
the flags of the testbed is done here, without another program: the process that was forked stands
for `unshare`, and its child is process 1.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from harness.fork_server.c_library import call
from harness.fork_server.process_title import show_as

__all__ = ["PREFIX", "end_as", "enter", "within"]

_UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
#: What is before the program of a container. (The modules of the testbed must not be loaded here.)
PREFIX = ("setpriv", "--pdeathsig", "KILL", "--", *_UNSHARE)

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18


def within(arguments: Sequence[str]) -> Sequence[str] | None:
    """Returns the command line in a container; None: it is of no container."""
    if tuple(arguments[: len(PREFIX)]) != PREFIX:
        return None
    return arguments[len(PREFIX) :]


def enter() -> None:
    """Returns in the child, as process 1; this process lasts as long as that, and ends as it does.

    Raises:
      OSError: This user may not.
    """
    show_as([os.fsencode(word) for word in _UNSHARE], [])
    call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    call("unshare", _CLONE_NEWNS | _CLONE_NEWPID)
    call("mount", None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        end_as(child)
    call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    call("mount", b"proc", b"/proc", b"proc", flags, None)


def end_as(child: int) -> NoReturn:
    """Waits for a child, and ends as it does."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)
