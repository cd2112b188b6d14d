"""Marks a program with callbacks: by a number, and the names of the functions that it calls.

JAX wraps the functions that its user gave it.
"""

from __future__ import annotations

import functools
import importlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["mark", "name_of"]

#: The attributes of a program's module: its number, the number of its functions, their names.
_MARK = "sps.callbacks"
_NAMES = "sps.callback_names"
_JAX = frozenset({"jax", "jaxlib"})
#: The maximum number of functions to inspect.
_MOST = 100
#: The public names of JAX's own callbacks.
_OF_JAX = {
    "_format_print_callback": "jax.debug.print",
    "_breakpoint_callback": "jax.debug.breakpoint",
}


def mark(module: Any, key: int, functions: Sequence[Callable[..., Any]]) -> None:
    """Marks a module with the number of its program and the names of its functions."""
    ir: Any = importlib.import_module("jaxlib.mlir.ir")
    with module.context:
        attributes = module.operation.attributes
        attributes[_MARK] = ir.StringAttr.get(f"{key} {len(functions)}")
        names = [ir.StringAttr.get(name_of(one)) for one in functions]
        attributes[_NAMES] = ir.ArrayAttr.get(names)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of the user's function inside the function that JAX makes of it."""
    waiting: deque[Any] = deque([function])
    seen: list[Any] = []
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if any(one is other for other in seen):
            continue
        seen.append(one)
        name = str(_attribute(one, "__qualname__") or _attribute(one, "__name__") or "")
        name = name.rpartition("<locals>.")[2]
        if known := _OF_JAX.get(name):
            return known
        if _package(one) not in _JAX:
            return name or type(one).__qualname__
        waiting.extend(_within(one))
    return "a function of JAX"


def _package(function: Any) -> str:
    if isinstance(function, functools.partial):
        return "jax"  # inspected further
    module = _attribute(function, "__module__") or type(function).__module__
    return str(module).partition(".")[0]


def _within(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield function.func
    for cell in _attribute(function, "__closure__") or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if callable(content) and not isinstance(content, type):
            yield content
    for name in ("callback_func", "__wrapped__"):
        if (content := _attribute(function, name)) is not None:
            yield content


def _attribute(function: Any, name: str) -> Any:
    """Returns an attribute; None if it is missing, or the object's own code fails."""
    try:
        return getattr(function, name, None)
    except Exception:  # noqa: BLE001 - a name is not worth failing for
        return None
