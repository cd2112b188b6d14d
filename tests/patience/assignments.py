"""What sources assign, for the tests that read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["assigned"]


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yields the names that a statement assigns, with their values; those of a tuple one by one."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    pairs: list[tuple[ast.expr, ast.expr]] = [(target, node.value)]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(target.elts, node.value.elts, strict=False))
    yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))
