"""Warns that a proxy of this project ignores requests for XLA's dumps.

A program requests dumps with ``XLA_FLAGS``, or with ``compiler_options``. A proxy writes no files
for its clients, and says so only in its own log, which the program's user does not see.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from . import local

__all__ = ["ignored_flags", "warn_of_options"]

_DUMP = "xla_dump_"
_FLAG = re.compile(rf"--({_DUMP}\w+)")


def ignored_flags() -> str:
    """Returns a warning about flags for dumps in ``XLA_FLAGS``; empty if there are none."""
    return _warning("XLA_FLAGS", _FLAG.findall(os.environ.get("XLA_FLAGS", "")))


@functools.cache
def warn_of_options() -> None:
    """Warns once, for the whole process, when ``compiler_options`` request dumps from a proxy."""
    compiler: Any = importlib.import_module("jax._src.compiler")
    # (A failure of the warning must not end the program.)
    if original := getattr(compiler, "get_compile_options", None):
        compiler.get_compile_options = _warning_first(original)


def _warning_first(original: Callable[..., Any]) -> Callable[..., Any]:
    warned = False

    @functools.wraps(original)
    def get_compile_options(*args: Any, **named: Any) -> Any:
        nonlocal warned
        options = named.get("env_options_overrides") or ()
        asked = [name for name in options if name.startswith(_DUMP)]
        if asked and not warned and local.is_claimed(named.get("backend")):
            warned = True
            warnings.warn(_warning("compiler_options", asked), stacklevel=2)
        return original(*args, **named)

    return get_compile_options


def _warning(source: str, names: Iterable[str]) -> str:
    listed = ", ".join(dict.fromkeys(names))
    if not listed:
        return ""
    return (
        f"{source} requests dumps of XLA ({listed}); a proxy ignores this, as it writes no files "
        "for its clients. Give the flags to the proxy itself, or compile on this machine's CPU"
    )
