"""Records where programs with callbacks were called, and lets calls wait for callbacks."""

from __future__ import annotations

import contextvars
import functools
import importlib
from collections.abc import Callable
from typing import Any

from .callback_barrier import await_own

__all__ = ["install", "newest_context"]

#: JAX's setting of whether programs on the CPU run beside the thread that calls them.
_ASYNC = "jax_cpu_enable_async_dispatch"

#: Of the newest call of a program with callbacks: it has the cell of a notebook, for one.
_newest = contextvars.copy_context()


def newest_context() -> contextvars.Context:
    """Returns a copy of the context in which the newest program with callbacks was called."""
    return _newest.copy()


def install(is_serving: Callable[[], bool]) -> None:
    """Makes JAX's calls of programs with callbacks pass through this module, permanently."""
    pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
    if runner := getattr(pxla, "ExecuteReplicated", None):
        runner.__call__ = _noting(runner.__call__, is_serving)
    pjit: Any = importlib.import_module("jax._src.pjit")
    name = "_get_fastpath_data"
    if original := getattr(pjit, name, None):
        setattr(pjit, name, _without_callbacks(original, is_serving))


def _noting(original: Callable[..., Any], is_serving: Callable[[], bool]) -> Callable[..., Any]:
    """Returns the function that calls a program, which notes the context of the call.

    With `jax_cpu_enable_async_dispatch` off it also waits for the program, as a program on the CPU
    then runs before its call returns.
    """
    jax: Any = importlib.import_module("jax")

    @functools.wraps(original)
    def call(self: Any, *args: Any) -> Any:
        global _newest  # noqa: PLW0603 - one for all: calls do not name the execution
        if not (getattr(self, "has_host_callbacks", False) and is_serving()):
            return original(self, *args)
        _newest = contextvars.copy_context()
        made = original(self, *args)
        if not jax.config.values.get(_ASYNC, True):
            await_own()
        return made

    return call


def _without_callbacks(
    original: Callable[..., Any], is_serving: Callable[[], bool]
) -> Callable[..., Any]:
    """Returns the function that decides on JAX's fast path, which now excludes callbacks.

    On that path later calls of a jitted function bypass `ExecuteReplicated`. JAX excludes programs
    with effects itself, but a `pure_callback` has none.
    """

    @functools.wraps(original)
    def fast_path_data(executable: Any, *args: Any, **kwargs: Any) -> Any:
        runner = getattr(executable, "unsafe_call", None)
        if getattr(runner, "has_host_callbacks", False) and is_serving():
            return None
        return original(executable, *args, **kwargs)

    return fast_path_data
