"""Warns that a proxy of this project ignores requests for XLA's dumps.

A program asks for dumps with ``XLA_FLAGS``, or with ``compiler_options``. A proxy writes no files
for its clients, and says so in its own log only, which the program's user does not see.

Like the plug-in the file needs the standard library and JAX only: both are copied together.
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
    """Has this process warn once when ``compiler_options`` ask a proxy for dumps; for good."""
    compiler: Any = importlib.import_module("jax._src.compiler")
    # (A warning is not worth failing for.)
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
        f"{source} asks for dumps of XLA ({listed}): a proxy ignores that, as it writes no files "
        "for its clients. Give the flags to the proxy itself, or compile on this machine's CPU"
    )
