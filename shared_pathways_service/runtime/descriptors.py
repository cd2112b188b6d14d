"""File descriptors: the limit of this process, raised where it is ours and checked where it is not.

A process of the service that runs out of descriptors refuses connections without an answer, and a
client only sees that nothing happens. So too low a limit is an error before anything is started.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from shared_pathways_service.errors import PreflightError

__all__ = ["ADVISED", "NEEDED", "check_limit", "check_room", "limit", "raise_limit"]

#: Descriptors that each process of a service must be allowed to have: a server's own 192, and 64
#: connections.
NEEDED = 256
#: What leaves room for programs that open files of their own.
ADVISED = 4096
#: Descriptors that the agent's socket, JAX's client and its channels take in a user's process.
#: (Seven were counted; a second connection of gRPC's and a log file may come on top.)
_CLIENT = 32
#: More than any server of ours uses. macOS refuses to set its "unlimited".
_MOST = 1 << 16
_OPEN_MAX = 10_240


def raise_limit() -> None:
    """Raises the soft limit of this process to its hard one, as far as the system permits.

    Only for processes that are ours alone: a limit is inherited, and programs that use `select`
    cannot take descriptors above 1023.
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
    """Returns how many descriptors this process may have now; None: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def check_limit() -> None:
    """Checks that this process may have the descriptors that a server needs.

    Raises:
      PreflightError: It may not.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    _check(soft, "soft")


def check_room() -> None:
    """Checks that a connection of this process can have the descriptors that it needs.

    The processes that it starts raise their own limit as far as the hard one, which must suffice
    for the service. In this process a few more descriptors must be left.

    Raises:
      PreflightError: They are not to be had.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _check(hard, "hard")
    if soft != resource.RLIM_INFINITY and (used := _used(soft)) + _CLIENT > soft:
        raise PreflightError(
            f"this process has {used} of at most {soft} files open (RLIMIT_NOFILE), and a "
            f"connection needs up to {_CLIENT} more",
            hint=_HINT,
        )


_HINT = (
    f"`ulimit -n {ADVISED}` in the shell that starts it; beyond the hard limit (`ulimit -Hn`) only "
    "an administrator of this machine can raise it"
)


def _check(found: int, which: str) -> None:
    if found != resource.RLIM_INFINITY and found < NEEDED:
        raise PreflightError(
            f"a process may open {found} files here (the {which} limit RLIMIT_NOFILE), and those "
            f"of a service need at least {NEEDED}",
            hint=_HINT,
        )


def _used(soft: int) -> int:
    try:
        # One of them is the directory that is read.
        return sum(1 for _ in Path("/dev/fd").iterdir()) - 1
    except OSError:
        return soft
