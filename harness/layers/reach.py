"""Finds what the code of a test can reach: functions, classes and modules that it names."""

from __future__ import annotations

import collections
import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

__all__ = ["Reach"]


class Reach:
    """Answers whether code can reach something, by the names in it; remembers the answers.

    Names are followed through functions and classes of some packages. A class counts with all its
    methods, as nothing says which of them is called. What is only named by a string is not seen.

    Args:
      packages: Top-level packages whose code is followed.
      modules: Modules that are looked for; naming one is enough.
      names: Functions that are looked for, whatever they belong to.
    """

    def __init__(
        self,
        packages: Collection[str],
        *,
        modules: Collection[str],
        names: Collection[str],
    ) -> None:
        self._packages = frozenset(packages)
        self._modules = frozenset(modules)
        self._names = frozenset(names)
        #: What was visited, by identity: it is kept so that its identity remains its own.
        self._visited: dict[int, object] = {}
        #: Who names a thing, among what was visited.
        self._named_by: dict[int, list[int]] = collections.defaultdict(list)
        self._reaching: set[int] = set()

    def reaches(self, thing: object) -> bool:
        """Returns whether a function, class or module is one that is looked for, or reaches one."""
        to_visit, found = [thing], list[int]()
        while to_visit:
            visited = to_visit.pop()
            key = id(visited)
            if key in self._visited:
                continue
            self._visited[key] = visited
            named, has_name = self._step(visited)
            if has_name or self._is_sought(visited):
                found.append(key)
                continue
            keys = [id(one) for one in named]
            if not self._reaching.isdisjoint(keys):
                found.append(key)
                continue
            for one in keys:
                self._named_by[one].append(key)
            to_visit += named
        while found:
            if (key := found.pop()) not in self._reaching:
                self._reaching.add(key)
                found += self._named_by.pop(key, ())
        return id(thing) in self._reaching

    def _is_sought(self, thing: object) -> bool:
        return isinstance(thing, types.ModuleType) and thing.__name__ in self._modules

    def _step(self, thing: object) -> tuple[list[object], bool]:
        """Returns what a thing names, and whether it has a name that is looked for."""
        found = [*self._parts(thing)]
        if not isinstance(thing, types.FunctionType) or not self._follows(thing):
            return found, False
        names = set(_names(thing.__code__))
        found += _resolved(thing, names, self._follows)
        return found, not names.isdisjoint(self._names)

    def _parts(self, thing: object) -> Iterator[object]:
        """Yields what a thing holds that may have code."""
        if isinstance(thing, types.FunctionType):
            if self._follows(thing):
                yield from _held(thing)
        elif isinstance(thing, type):
            if self._follows(thing):
                yield from _members(thing)
        elif not isinstance(thing, types.ModuleType):
            yield from _contents(thing)
            if self._follows(type(thing)):
                yield type(thing)

    def _follows(self, thing: object) -> bool:
        return _module_of(thing).partition(".")[0] in self._packages


def _module_of(thing: object) -> str:
    # (Of other objects any attribute may be computed.)
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    return str(thing.__module__) if isinstance(thing, types.FunctionType | type) else ""


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the names of globals, attributes and imports in code and in what is defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _resolved(
    function: types.FunctionType, names: set[str], follows: Callable[[object], bool]
) -> Iterator[object]:
    # (An import in a function has the module's whole name, and no global.)
    found = [function.__globals__.get(name, sys.modules.get(name)) for name in names]
    yield from found
    for value in found:
        if isinstance(value, types.ModuleType) and follows(value):
            yield from (vars(value)[name] for name in names if name in vars(value))


def _held(function: types.FunctionType) -> Iterator[object]:
    """Yields what a function's closure and defaults hold, and what it wraps."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue
    yield from function.__defaults__ or ()
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        yield wrapped


def _members(cls: type[Any]) -> Iterator[object]:
    """Yields the functions of a class, and its bases."""
    for value in vars(cls).values():
        if isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield from filter(None, (value.fget, value.fset))
        elif isinstance(value, functools.cached_property):
            yield value.func
        elif isinstance(value, types.FunctionType | functools.partialmethod):
            yield value
    yield from cls.__bases__


def _contents(thing: object) -> Iterator[object]:
    """Yields what an object holds that may hold code."""
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, type(thing.__self__))
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif callable(wrapped := inspect.getattr_static(thing, "__wrapped__", None)):
        yield wrapped
