"""Waits, for a bounded time, for programs that may still call functions of this process.

Like the plug-in the file needs the standard library and JAX only: it is copied with it.
"""

from __future__ import annotations

import importlib
import logging
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["CallbackBarrier", "await_own"]

_log = logging.getLogger(__name__)
#: Seconds without any call after which it waits no longer.
_QUIET_S = 10.0


class CallbackBarrier:
    """Waits as `jax.effects_barrier` does, which has no end where a function does not return.

    The thread that waits is made now: at the end of the process Python begins none.
    """

    def __init__(self) -> None:
        """Begins the thread."""
        self._tokens: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()
        self._done = threading.Event()
        self._error: Exception | None = None
        self._is_asked = False
        self._thread = threading.Thread(target=self._run, name="sps-callbacks-barrier", daemon=True)
        self._thread.start()

    def wait(self, count_calls: Callable[[], int]) -> None:
        """Waits for programs that this thread has begun, once.

        Args:
          count_calls: Returns how many calls have been made: as long as there are more, it waits.
        """
        self._is_asked = True
        self._tokens.put(_tokens())
        calls = count_calls()
        while not self._done.wait(_QUIET_S):
            before, calls = calls, count_calls()
            if before == calls:
                _log.warning(
                    "programs that call functions of this process (jax.debug.print, for one) have "
                    "not ended, and none was called for %g s: what they print is lost",
                    _QUIET_S,
                )
                return
        # (An exception on its way out is this one, or says more.)
        if self._error is not None and sys.exception() is None:
            _log.warning("a program that calls functions of this process failed: %s", self._error)

    def close(self) -> None:
        """Ends the thread; where it still waits, with the connection."""
        self._tokens.put(())
        if self._done.is_set() or not self._is_asked:
            self._thread.join()

    def _run(self) -> None:
        for token in self._tokens.get():
            try:
                token.block_until_ready()
            except Exception as error:  # noqa: BLE001 - JAX's: told where it is waited for
                self._error = error
        self._done.set()


def _tokens() -> list[Any]:
    """Returns the tokens of programs that this thread has begun and that have effects."""
    dispatch: Any = importlib.import_module("jax._src.dispatch")
    found = getattr(dispatch, "runtime_tokens", None)
    held = (getattr(found, name, {}) for name in ("current_tokens", "output_runtime_tokens"))
    return [token for tokens in held for token in tokens.values()]


def await_own() -> None:
    """Waits for the programs with callbacks that this thread has started, as effects_barrier does.

    Raises:
      JaxRuntimeError: One of them failed; it is raised once. (JAX before 0.10 raises it again.)
    """
    jax: Any = importlib.import_module("jax")
    dispatch: Any = importlib.import_module("jax._src.dispatch")
    try:
        jax.effects_barrier()
    finally:
        dispatch.runtime_tokens.clear()
