"""Runs a command that cannot lock files, as in a home on a file system without locks.

``python -m tests.runtime.no_locks COMMAND …``: the kernel answers ENOLCK to each flock(), and to
each lock by fcntl(), of this process and of all that it starts (a seccomp filter).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

__all__ = ["PREFIX", "refuse_locks"]

#: Goes before a command.
PREFIX = (sys.executable, "-m", "tests.runtime.no_locks")

#: Numbers of flock and fcntl, and the machine's name in a filter's data (linux/audit.h).
_MACHINES = {"x86_64": (73, 72, 0xC000003E), "aarch64": (32, 25, 0xC00000B7)}
#: F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW.
_LOCKING = (6, 7, 37, 38)
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOLCK
#: Where a filter's data have the call's number, the machine, and the low half of argument 2.
_NUMBER, _MACHINE, _COMMAND = 0, 4, 24


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_locks() -> None:
    """Makes the kernel refuse every lock of this process, for good.

    Raises:
      OSError: This machine has no such filters.
    """
    flock, fcntl, machine = _MACHINES[platform.machine()]
    commands = len(_LOCKING)
    program = [
        (_LOAD, 0, 0, _MACHINE),
        (_JUMP_IF_EQUAL, 0, commands + 4, machine),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, commands + 3, 0, flock),
        (_JUMP_IF_EQUAL, 0, commands + 1, fcntl),
        (_LOAD, 0, 0, _COMMAND),
        *((_JUMP_IF_EQUAL, commands - at, 0, each) for at, each in enumerate(_LOCKING)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    libc = ctypes.CDLL(None, use_errno=True)
    filtering = _Program(len(program), code)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filtering), 0, 0),
    ):
        if libc.prctl(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    refuse_locks()
    os.execvp(sys.argv[1], sys.argv[1:])
