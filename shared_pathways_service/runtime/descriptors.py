"""Raises the limit of file descriptors in our own processes, and checks it in others.

A process of the service that runs out of descriptors refuses connections without an answer, and its
clients see no reason. So a limit that is too low is an error before anything is started.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from shared_pathways_service.errors import PreflightError

__all__ = ["ADVISED", "NEEDED", "check_limit", "check_room", "limit", "raise_limit"]

#: Descriptors that each process of a service needs: 192 for a server itself, and 64 connections.
NEEDED = 256
#: A limit that leaves room for programs that open files of their own.
ADVISED = 4096
#: Descriptors that the agent's socket, JAX's client and its channels use in a user's process.
#: (Seven were counted; a second gRPC connection and a log file may be added.)
_CLIENT = 32
#: More than any of our servers uses. macOS refuses to set its "unlimited".
_MOST = 1 << 16
_OPEN_MAX = 10_240


def raise_limit() -> None:
    """Raises the soft limit of this process to the hard limit, as far as the system permits.

    Only for our own processes: a limit is inherited, and programs that use `select` cannot use
    descriptors above 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (_MOST, _OPEN_MAX):
        aim = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft == resource.RLIM_INFINITY or soft >= aim:
            return
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
            return


def limit() -> int | None:
    """Returns the current limit of this process; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def check_limit() -> None:
    """Checks that the limit is high enough for a server; raises PreflightError."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    _check(soft, "soft")


def check_room() -> None:
    """Checks that this process has enough descriptors for a connection; raises PreflightError.

    Processes that it starts raise their own limit to the hard limit, which must be enough for the
    service. This process needs only a few more descriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _check(hard, "hard")
    if soft != resource.RLIM_INFINITY and (used := _used(soft)) + _CLIENT > soft:
        raise PreflightError(
            f"this process has {used} of at most {soft} files open (RLIMIT_NOFILE), but a "
            f"connection needs up to {_CLIENT} more",
            hint=_HINT,
        )


_HINT = (
    f"run `ulimit -n {ADVISED}` in the shell that starts it; above the hard limit (`ulimit -Hn`) "
    "only an administrator of this machine can raise it"
)


def _check(found: int, which: str) -> None:
    if found != resource.RLIM_INFINITY and found < NEEDED:
        raise PreflightError(
            f"a process may open {found} files (the {which} limit RLIMIT_NOFILE), but those "
            f"of a service need at least {NEEDED}",
            hint=_HINT,
        )


def _used(soft: int) -> int:
    try:
        # One of them is the directory being read.
        return sum(1 for _ in Path("/dev/fd").iterdir()) - 1
    except FileNotFoundError:
        return 0  # there is no /proc, which is reported where it is needed
    except OSError:
        return soft
