"""What jaxlib offers to Python, by the signatures that nanobind writes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["Entry", "Parameter", "entries"]

#: Compilers that know no client.
_NOT_FOLLOWED = "jaxlib.mlir"


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
      name: As in the signature; ``self`` of a method.
      type: The annotation as text; the class's name for ``self``.
      is_needed: Whether it has no default.
      is_named: Whether it must be passed by name.
    """

    name: str
    type: str
    is_needed: bool
    is_named: bool


@dataclasses.dataclass(frozen=True)
class Entry:
    """One function, method or property, in one of its signatures."""

    path: str
    call: Any
    signature: str
    parameters: tuple[Parameter, ...]


def entries() -> list[Entry]:
    """Returns all, of all of jaxlib's extension modules that are loaded, in a fixed order."""
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("jaxlib.") and not name.startswith(_NOT_FOLLOWED)
        if str(getattr(module, "__file__", "")).endswith(".so")
    ]
    seen: set[int] = set()
    return [entry for module in modules for entry in _within(module, module.__name__, seen)]


def _within(holder: Any, path: str, seen: set[int]) -> Iterator[Entry]:
    if id(holder) in seen:
        return
    seen.add(id(holder))
    for name in sorted(vars(holder)):
        member, place = vars(holder)[name], f"{path}.{name}"
        if isinstance(member, types.ModuleType):
            if member.__name__.startswith("jaxlib._"):
                yield from _within(member, place, seen)
        elif isinstance(member, type):
            if member.__module__.startswith("jaxlib"):
                yield from _within(member, place, seen)
        elif name != "__del__":
            yield from _signatures(member, place, holder)


def _signatures(member: Any, path: str, holder: Any) -> Iterator[Entry]:
    owner = holder.__name__ if isinstance(holder, type) else ""
    call: Any = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    # (The plug-in replaces some by functions of Python.)
    for signature, *_ in getattr(inspect.unwrap(call), "__nb_signature__", None) or ():
        parameters = _parsed(signature, owner)
        if path.endswith(".__init__"):
            yield Entry(path, holder, signature, parameters[1:])
        else:
            yield Entry(path, call, signature, parameters)


def _parsed(signature: str, owner: str) -> tuple[Parameter, ...]:
    """Returns the parameters of a signature, which is Python but for its defaults."""
    # nanobind writes \\0 for its first default; and type variables are not Python's before 3.12.
    text = re.sub(r"\\\d+", "...", signature)
    text = re.sub(r"^def (\w+)\[.*?\]\(", r"def \1(", text)
    text = re.sub(r"ndarray\[[^]]*\]", "ndarray", re.sub(r"^def \(", "def f(", text))
    found = ast.parse(f"{text}: ...").body[0]
    assert isinstance(found, ast.FunctionDef)
    positional = [*found.args.posonlyargs, *found.args.args]
    needed = len(positional) - len(found.args.defaults)
    return (
        *(_parameter(one, owner, number < needed) for number, one in enumerate(positional)),
        *(
            _parameter(one, owner, default is None, is_named=True)
            for one, default in zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
        ),
    )


def _parameter(
    argument: ast.arg, owner: str, is_needed: bool, *, is_named: bool = False
) -> Parameter:
    written = "" if argument.annotation is None else ast.unparse(argument.annotation)
    kind = owner if argument.arg == "self" else written
    return Parameter(argument.arg, kind, is_needed, is_named)
