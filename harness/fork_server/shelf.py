"""Modules that are loaded but that the program has not imported: it finds them when it does.

Which modules an import of one brings with it is recorded while they are loaded, so that
`sys.modules` always has what it would have without a shelf.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import ctypes
import importlib.machinery
import sys
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

__all__ = ["Shelf"]


class Shelf:
    """Modules that were loaded by `loading` and put away by `put_away`.

    It is a finder of modules: put it first in `sys.meta_path`.

    Attributes:
      on_import: Called with the names of the modules that the program has just been given.
    """

    def __init__(self) -> None:
        self.on_import: Callable[[Collection[str]], None] = lambda _names: None
        self._modules: dict[str, types.ModuleType] = {}
        #: What each module imports.
        self._imports: dict[str, set[str]] = {}
        #: Modules that are attributes of their package.
        self._attributes: set[str] = set()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Records the imports of the block."""
        before = builtins.__import__
        running = [""]

        def record(
            name: str,
            globals: Any = None,  # noqa: A002 - as Python names it
            locals: Any = None,  # noqa: A002
            fromlist: Any = (),
            level: int = 0,
        ) -> Any:
            importer = (globals or {}).get("__name__") or running[-1]
            full = _absolute(name, globals, level)
            known = set(sys.modules)
            running.append(full)
            try:
                return before(name, globals, locals, fromlist, level)
            finally:
                running.pop()
                new = sys.modules.keys() - known
                parts = {f"{full}.{part}" for part in fromlist or ()} & sys.modules.keys()
                for loaded in parts & new or {full}:
                    self._imports.setdefault(loaded, set()).update(new)
                self._imports.setdefault(importer, set()).update({full}, parts)

        builtins.__import__ = record
        try:
            yield
        finally:
            builtins.__import__ = before

    def put_away(self, visible: Collection[str]) -> None:
        """Takes all modules but the visible ones out of `sys.modules`."""
        for name in sys.modules.keys() - visible:
            module = sys.modules.pop(name)
            # What runs as the main program runs anew.
            if not name.endswith(".__main__"):
                self._modules[name] = module
        for name, module in self._modules.items():
            package, _, part = name.rpartition(".")
            parent = self._modules.get(package) or sys.modules.get(package)
            if parent is not None and vars(parent).get(part) is module:
                delattr(parent, part)
                self._attributes.add(name)
        # What stays here outlives the interpreter: to free it, each fork would copy all its pages.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._modules))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module on the shelf, as `importlib.abc.MetaPathFinder` says."""
        del path, target
        module = self._modules.get(name)
        found = getattr(module, "__spec__", None)
        if module is None or found is None:
            return None
        spec: importlib.machinery.ModuleSpec = copy.copy(found)
        spec.loader = _Loader(self._give, module, found)  # type: ignore[assignment]
        return spec

    def _give(self, name: str) -> None:
        """Puts a module and all that it imports into `sys.modules`."""
        given: set[str] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop()
            if one in given:
                continue
            given.add(one)
            waiting.extend(self._imports.get(one, ()))
            if package := one.rpartition(".")[0]:
                waiting.append(package)
        new = {one for one in given if one in self._modules}
        for one in new:
            sys.modules[one] = self._modules[one]
        for one in new & self._attributes:
            package, _, part = one.rpartition(".")
            setattr(sys.modules[package], part, self._modules[one])
        for one in new:
            del self._modules[one]
        self.on_import(new)


class _Loader:
    """Gives a module of the shelf."""

    def __init__(
        self,
        give: Callable[[str], None],
        module: types.ModuleType,
        spec: importlib.machinery.ModuleSpec,
    ) -> None:
        self._give = give
        self._module = module
        self._spec = spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        self._give(spec.name)
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        # (The import machinery has set another one.)
        module.__spec__ = self._spec

    def __getattr__(self, name: str) -> Any:
        # What asks for source, code or files.
        return getattr(self._spec.loader, name)


def _absolute(name: str, globals_: Any, level: int) -> str:
    if level == 0:
        return name
    package = globals_.get("__package__") or globals_["__name__"]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base
