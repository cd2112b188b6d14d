"""Explains why a proxy that serves one client at a time, like Google's, does not serve this one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["HINT", "Refusals", "SessionHeldError"]

#: Part of the error of JAX's client if the proxy cancels its session.
_CANCELLED = "terminated: CANCELLED"
HINT = "end the other process; if there is none, connect again, to a new proxy"


class SessionHeldError(RuntimeError):
    """Another client has the session of a proxy that serves one client at a time."""

    def __init__(self, target: str) -> None:
        super().__init__(
            f"another client holds the session of the proxy at {target}, which serves one at a "
            "time; or a client was killed or cut off without ending its session, which Google's "
            "proxies may not notice"
        )


class Refusals:
    """Notes whether the proxy at an address cancels sessions. Thread-safe."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._was_cancelled = threading.Event()

    def note(self, error: Exception) -> None:
        """Takes the error of an attempt."""
        if _CANCELLED in str(error):
            self._was_cancelled.set()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raises SessionHeldError in place of another error, if a session was cancelled."""
        try:
            yield
        except Exception as error:
            if self._was_cancelled.is_set():
                raise SessionHeldError(self._target) from error
            raise
