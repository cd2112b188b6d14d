"""Slows a function down in each Python process that has this folder on its PYTHONPATH.

`SPS_GATE_SLOWED` names it, as MODULE:NAME:SECONDS:KIND, where the seconds are added to each call:
of processor time if the kind is "processor", else of any.
`python -m benchmarks.gate --prove` uses this, to show that the gate sees it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

VARIABLE = "SPS_GATE_SLOWED"


class _Loader(importlib.abc.Loader):
    def __init__(
        self, loader: importlib.abc.Loader, name: str, pass_time: Callable[[], None]
    ) -> None:
        self._loader, self._name, self._pass_time = loader, name, pass_time

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        owner: Any = module
        *path, last = self._name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, self._slowed(getattr(owner, last)))

    def _slowed(self, function: Any) -> Any:
        @functools.wraps(function)
        def slowed(*arguments: Any, **keywords: Any) -> Any:
            self._pass_time()
            return function(*arguments, **keywords)

        return slowed


def _pass(seconds: float) -> None:
    # A sleep takes some 60 us more than it should.
    if seconds > 0.002:
        time.sleep(seconds)
        return
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, name: str, pass_time: Callable[[], None]) -> None:
        self._module, self._name, self._pass_time = module, name, pass_time

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._name, self._pass_time)
        return spec


if wanted := os.environ.get(VARIABLE):
    module, name, seconds, kind = wanted.split(":")
    pass_time = functools.partial(_compute if kind == "processor" else _pass, float(seconds))
    sys.meta_path.insert(0, _Finder(module, name, pass_time))
