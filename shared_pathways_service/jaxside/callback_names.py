"""Names of the functions that a program calls: JAX wraps what its user gave it.

Like the plug-in the file needs the standard library only: it is copied with it.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["name_of"]

_JAX = frozenset({"jax", "jaxlib"})
#: Functions that are looked into at most.
_MOST = 100
#: What JAX's own callbacks are called by its users.
_OF_JAX = {
    "_format_print_callback": "jax.debug.print",
    "_breakpoint_callback": "jax.debug.breakpoint",
}


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of the user's function within what JAX has a program call."""
    waiting: deque[Any] = deque([function])
    seen: list[Any] = []
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if any(one is other for other in seen):
            continue
        seen.append(one)
        name = str(getattr(one, "__qualname__", "") or getattr(one, "__name__", ""))
        name = name.rpartition("<locals>.")[2]
        if known := _OF_JAX.get(name):
            return known
        if _package(one) not in _JAX:
            return name or type(one).__qualname__
        waiting.extend(_within(one))
    return "a function of JAX"


def _package(function: Any) -> str:
    if isinstance(function, functools.partial):
        return "jax"  # it is looked into
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]


def _within(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield function.func
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # it is empty
            continue
        if callable(content) and not isinstance(content, type):
            yield content
    for name in ("callback_func", "__wrapped__"):
        if (content := getattr(function, name, None)) is not None:
            yield content
