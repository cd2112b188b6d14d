"""Where the package makes its errors, and with which words: read from the source, not run."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from shared_pathways_service.patience import timeouts

__all__ = ["Raised", "all_raised"]

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "shared_pathways_service"
#: An error stands with its words where it is made; these only carry errors, or are a test's own.
_LEFT_OUT = ("errors.py", "protocol/grpc_errors.py", "testing/fake_home.py")
#: Positional parameters of constructors; all others have the message first.
_PARAMETERS = {"InvalidRequestError": ("field", "value", "expected")}
_OPEN = "…"
#: Methods that return a command with its place, and the command's first word.
_COMMANDS = {"sps": "sps", "command": "sps", "kubectl": "kubectl"}
#: How far names are followed.
_DEEP = 3

Names = Mapping[str, ast.expr]


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Raised:
    """An error that is made somewhere.

    Attributes:
      error: Its class.
      path: The module's file, in the package.
      texts: The words given, by parameter; what is known only when it runs is in upper case.
    """

    error: str
    path: str
    texts: tuple[tuple[str, str], ...]

    def text(self, name: str) -> str:
        """Returns the words given for a parameter; empty when none were."""
        return dict(self.texts).get(name, "")


@functools.cache
def all_raised(errors: frozenset[str]) -> tuple[Raised, ...]:
    """Returns each place where one of these classes is made, once."""
    found = set()
    for file in sorted(_PACKAGE.rglob("*.py")):
        path = file.relative_to(_PACKAGE).as_posix()
        if path not in _LEFT_OUT:
            found |= set(_in_module(ast.parse(file.read_text()), path, errors))
    return tuple(sorted(found))


def _in_module(tree: ast.Module, path: str, errors: frozenset[str]) -> Iterator[Raised]:
    constants = {**_imported(tree), **_assigned(tree), **_short_functions(tree)}
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {id(node) for scope in scopes for node in ast.walk(scope) if node is not scope}
    # Of functions in functions, the outer one only.
    for scope in [scope for scope in scopes if id(scope) not in inner]:
        names = {**constants, **_assigned(scope)}
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and _called(node) in errors:
                yield Raised(error=_called(node), path=path, texts=tuple(_texts(node, names)))


def _assigned(scope: ast.AST) -> dict[str, ast.expr]:
    """Returns the names that have one value only."""
    found: dict[str, list[ast.expr]] = {}
    nodes = scope.body if isinstance(scope, ast.Module) else ast.walk(scope)
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _imported(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns the constants that the module has from others of the package."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE.name):
            for name in [alias.name for alias in node.names if alias.name.isupper()]:
                value = getattr(importlib.import_module(str(node.module)), name)
                if isinstance(value, str | int | float):
                    found[name] = ast.Constant(value)
    return found


def _short_functions(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns what is returned by functions that do nothing else; their calls are read as that."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return):
            before = [n for n in node.body[:-1] if not isinstance(n, ast.Expr)]
            if not before and node.body[-1].value is not None:
                found[f"{node.name}()"] = node.body[-1].value
    return found


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(node: ast.Call, names: Names) -> Iterator[tuple[str, str]]:
    parameters = _PARAMETERS.get(_called(node), ("message",))
    given = dict(zip(parameters, node.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    for name in ("message", "hint", "field", "expected"):
        if name in given:
            yield name, _words(given[name], names)


def _words(node: ast.expr, names: Names, depth: int = 0) -> str:
    """Returns an expression's text, as far as it is known without running it."""

    def inner(part: ast.expr) -> str:
        return _words(part, names, depth)

    match node:
        case ast.Constant():
            return _constant(node.value)
        case ast.JoinedStr(values=values):
            return "".join(map(inner, values))
        case ast.FormattedValue(value=value):
            return _timeout(value) or inner(value)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return inner(left) + inner(right)
        case ast.IfExp(body=body, orelse=orelse):
            return " *or* ".join(filter(None, (inner(body), inner(orelse))))
        case ast.BoolOp(values=[first, *_]):
            return inner(first)
        case ast.Name(id=name):
            return _name(name, names, depth)
        case ast.Call(func=ast.Name(id=name)) if f"{name}()" in names and depth < _DEEP:
            known = {key: value for key, value in names.items() if key.endswith("()")}
            text = _words(names[f"{name}()"], known, depth + 1)
            return text if _OPEN not in text else _other(node)
    return _other(node)


def _timeout(node: ast.expr) -> str:
    """Returns the seconds of a time-out on a quiet machine; empty: it is something else."""
    match node:
        case ast.Attribute(attr="s", value=ast.Attribute(attr=name, value=ast.Name(id="timeouts"))):
            return _constant(getattr(timeouts, name).seconds)
    return ""


def _constant(value: object) -> str:
    if isinstance(value, str):
        return re.sub(r"\s+", " ", value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else _OPEN


def _name(name: str, names: Names, depth: int) -> str:
    known = names.get(name)
    text = _words(known, names, depth + 1) if known is not None and depth < _DEEP else _OPEN
    return text if _OPEN not in text else name.strip("_").upper()


def _other(node: ast.expr) -> str:
    match node:
        case ast.Attribute(attr=attr):
            return attr.strip("_").upper()
        # The place of a command is left out.
        case ast.Call(func=ast.Attribute(attr=tool), args=words) if tool in _COMMANDS:
            return " ".join((_COMMANDS[tool], *(_words(word, {}) for word in words)))
        # Such as `', '.join(names)`.
        case ast.Call(args=[ast.Name() | ast.Attribute() as only]):
            return _words(only, {})
    return _OPEN
