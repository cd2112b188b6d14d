"""Waits, for a bounded time, for programs that may still call functions of this process."""

from __future__ import annotations

import importlib
import logging
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .timeout_table import timeouts

__all__ = ["CallbackBarrier", "await_own"]

_log = logging.getLogger(__name__)
#: Begins the error of a function of this process, as on JAX's CPU. JAX has logged it when it was
#: raised, and the program may have caught it.
_LOGGED = "CpuCallback error calling callback: "


class CallbackBarrier:
    """Waits like `jax.effects_barrier`, but not forever if a function does not return.

    The waiting thread is started early: at its end the process starts none.
    """

    def __init__(self) -> None:
        self._tokens: queue.SimpleQueue[Sequence[Any]] = queue.SimpleQueue()
        self._done = threading.Event()
        self._error: Exception | None = None
        self._is_asked = False
        self._thread = threading.Thread(target=self._run, name="sps-callbacks-barrier", daemon=True)
        self._thread.start()

    def wait(self, count_calls: Callable[[], int]) -> None:
        """Waits once for this thread's programs, as long as the number of calls grows."""
        self._is_asked = True
        self._tokens.put(_tokens())
        calls = count_calls()
        while not self._done.wait(timeouts.CALLBACKS_QUIET.s):
            before, calls = calls, count_calls()
            if before == calls:
                _log.warning(
                    "programs that call functions of this process (such as jax.debug.print) have "
                    "not ended, and made no call for %g s: their output is lost",
                    timeouts.CALLBACKS_QUIET.s,
                )
                return
        # (A propagating exception is this one, or more informative.)
        known = self._error is None or _LOGGED in str(self._error) or sys.exception() is not None
        if not known:
            _log.warning("a program that calls functions of this process failed: %s", self._error)

    def close(self) -> None:
        """Ends the thread; if it still waits, it ends with the connection."""
        self._tokens.put(())
        if self._done.is_set() or not self._is_asked:
            self._thread.join()

    def _run(self) -> None:
        for token in self._tokens.get():
            try:
                token.block_until_ready()
            except Exception as error:  # noqa: BLE001 - JAX's: raised where it is waited for
                self._error = error
        self._done.set()


def _tokens() -> list[Any]:
    """Returns the tokens of programs with effects that this thread has started."""
    dispatch: Any = importlib.import_module("jax._src.dispatch")
    found = getattr(dispatch, "runtime_tokens", None)
    held = (getattr(found, name, {}) for name in ("current_tokens", "output_runtime_tokens"))
    return [token for tokens in held for token in tokens.values()]


def await_own() -> None:
    """Waits like effects_barrier for this thread's programs with callbacks; raises errors once.

    (JAX before 0.10 raises them again.)
    """
    jax: Any = importlib.import_module("jax")
    dispatch: Any = importlib.import_module("jax._src.dispatch")
    try:
        jax.effects_barrier()
    finally:
        dispatch.runtime_tokens.clear()
