"""Reads the source of upstream's library."""

from __future__ import annotations

import ast
from typing import Any

from harness.upstream import service_file


def upstreams(name: str, kind: type[ast.AST]) -> Any:
    """Returns a function or a class of upstream's `isc_pathways`."""
    tree = ast.parse(service_file("isc_pathways.py").read_text(encoding="utf-8"))
    [found] = [n for n in tree.body if isinstance(n, kind) and getattr(n, "name", "") == name]
    return found


def upstream_keywords() -> set[str]:
    """Returns the keywords of upstream's connect()."""
    return {argument.arg for argument in upstreams("connect", ast.FunctionDef).args.kwonlyargs}
