"""Enforces one live connection per process, because JAX has one proxy backend per process."""

from __future__ import annotations

import os
import threading
import traceback

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["claim", "live_owner", "release"]

#: The name under which multiprocessing (and joblib) runs the main module again in a child.
_MAIN_MODULE_IN_CHILD = "__mp_main__"

_lock = threading.Lock()
#: Process id, name and owner of the live connection. A forked child has a copy.
_live: tuple[int, str, object] | None = None


def claim(owner: object, name: str) -> None:
    """Makes `owner` this process's live connection, until `release`.

    Raises:
      InvalidRequestError: Another connection is live, or was live when this process was forked, or
        this is a child that runs its parent's main module again.
    """
    global _live  # noqa: PLW0603 - it is the process's
    if _imports_main_module_in_child():
        # It would wait for slices that its parent holds, which waits for the child; or take more.
        raise InvalidRequestError(
            "connect",
            name,
            "a call that multiprocessing does not repeat in each child",
            message="connect() is at the top level of the main module, which multiprocessing runs "
            "again in this child process",
            hint='put the call, and all that follows, below `if __name__ == "__main__":`',
        )
    with _lock:
        if _live is not None and _live[0] != os.getpid():
            raise InvalidRequestError(
                "connect",
                name,
                "a process that was not forked from a connected one",
                message="this process was forked from one with a live connection, "
                f"{_live[1]}, and cannot connect: JAX's client does not survive a fork",
                hint='start it with multiprocessing.get_context("spawn") or ("forkserver"), or as '
                "a program of its own",
            )
        if _live is not None:
            raise InvalidRequestError(
                "connect",
                name,
                "one live connection a process",
                message=f"the connection {_live[1]} of this process is live",
                hint="call close() on it first; where no variable refers to it any more, start() "
                "of the same request returns it",
            )
        _live = (os.getpid(), name, owner)


def live_owner() -> object | None:
    """Returns this process's live connection; None: there is none."""
    with _lock:
        return _live[2] if _live is not None and _live[0] == os.getpid() else None


def release(owner: object) -> None:
    """Allows another connection to become the live one."""
    global _live  # noqa: PLW0603 - it is the process's
    with _lock:
        if _live is not None and _live[2] is owner:
            _live = None


def _imports_main_module_in_child() -> bool:
    return any(
        frame.f_code.co_name == "<module>"
        and frame.f_globals.get("__name__") == _MAIN_MODULE_IN_CHILD
        for frame, _ in traceback.walk_stack(None)
    )
