"""Upstream's package as it is installed, read from its files: importing it would import JAX."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

__all__ = ["calls_of", "experimental", "service_file"]


def experimental() -> Path:
    """Returns the directory of `pathwaysutils.experimental`."""
    spec = importlib.util.find_spec("pathwaysutils")
    assert spec is not None
    assert spec.origin
    return Path(spec.origin).parent / "experimental"


def service_file(name: str) -> Path:
    """Returns a file of upstream's `shared_pathways_service`."""
    return experimental() / "shared_pathways_service" / name


def calls_of(file: Path, function: str) -> Iterator[ast.Call]:
    """Returns the calls of functions whose name in the source begins with a prefix."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(function):
            yield node
