#!/usr/bin/env python3
"""Checks the structure: no circular imports, limits on sizes, and which folder imports which.

Circles are looked for among modules, packages' ``__init__`` included, and count every import:
those below ``TYPE_CHECKING`` and those inside functions as well. (import-linter checks that
folders side by side form no circle.)

A module has at most 600 lines, also outside of the package. A class of the package has at most 400
and a function 60, docstrings not counted. A folder has at most 30 modules. Two modules of the
package have one name only if they do the same in two places (`_SHARED_NAMES`). What was larger when
the limits came is in `_LARGER`, which may only shrink.

Kept results are as the tools that measured them wrote them (`harness.results`).

Tests, benchmarks, stress and conformance share `harness`, and do not import each other; only tests
import what is in stress and conformance, and test it.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import grimp

_MODULE_LINES = 600
_CLASS_LINES = 400
_FUNCTION_LINES = 60
#: Modules of one folder; generated ones and `__init__` are not counted.
_FOLDER_FILES = 30

#: Lines of modules, classes and functions above their limit; never raise or add a number.
_LARGER: Mapping[str, int] = {}

#: Imports that are part of a circle; never add one.
_CIRCULAR: tuple[tuple[str, str], ...] = ()

#: Names that several modules may have: each does the same for another part, or is the other side of
#: it. (Those of `events` are named for the part whose events they have.)
_SHARED_NAMES = frozenset(
    {
        "__init__",
        "__main__",
        "api",
        "base",
        "callbacks",
        "checkpoints",
        "child",
        "compile_calls",
        "cordon",
        "counters",
        "deadlines",
        "errors",
        "failures",
        "flags",
        "home",
        "hotswap",
        "journal",
        "kubeconfig",
        "limits",
        "manager_link",
        "messages",
        "process",
        "service",
        "supervisor",
        "tenant_requests",
        "usage",
    }
)

#: What each top-level folder may import besides itself and the package.
_FOLDERS = {
    "shared_pathways_service": (),
    "examples": (),
    "harness": (),
    "benchmarks": ("harness",),
    "stress": ("harness",),
    "conformance": ("harness",),
    "tests": ("harness", "stress", "conformance"),
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def circle_errors(package: str, known: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each group of modules that import each other, directly or not."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    imports = {m: set(graph.find_modules_directly_imported_by(m)) for m in graph.modules}
    for importer, imported in known:
        if imported in imports.get(importer, ()):
            imports[importer].remove(imported)
        else:
            yield f"{importer} does not import {imported}: remove it from _CIRCULAR"
    reached = {module: _reachable(module, imports) for module in imports}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in imports
    }
    for group in sorted(filter(None, groups)):
        yield f"circular imports: {', '.join(group)}"


def _reachable(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    to_visit = list(imports[start])
    while to_visit:
        module = to_visit.pop()
        if module not in reached:
            reached.add(module)
            to_visit += imports[module]
    return reached


def sizes(root: Path, package: str) -> Iterator[tuple[str, int, int]]:
    """Yields the name, the lines and the limit of each module, class and function."""
    for path in sorted((root / package).rglob("*.py")):
        if path.stem.endswith(("_pb2", "_pb2_grpc")):
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text()
        yield module, len(source.splitlines()), _MODULE_LINES
        yield from _definitions(ast.parse(source), f"{module}:")


def _definitions(parent: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | _Function):
            name = f"{prefix}{node.name}"
            limit = _CLASS_LINES if isinstance(node, ast.ClassDef) else _FUNCTION_LINES
            yield name, _lines(node), limit
            yield from _definitions(node, f"{name}.")
        else:
            yield from _definitions(node, prefix)


def _lines(definition: ast.ClassDef | _Function) -> int:
    lines = _span(definition)
    for node in ast.walk(definition):
        if isinstance(node, ast.ClassDef | _Function) and ast.get_docstring(node) is not None:
            lines -= _span(node.body[0])
    return lines


def _span(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def size_errors(found: Iterator[tuple[str, int, int]], larger: Mapping[str, int]) -> Iterator[str]:
    """Yields a line for each size that breaks its limit, and each exception without need."""
    unneeded = dict(larger)
    for name, lines, limit in found:
        if lines <= limit:
            continue
        unneeded.pop(name, None)
        if name not in larger:
            yield f"{name} has {lines} lines; the limit is {limit}"
        elif lines > larger[name]:
            yield f"{name} has grown to {lines} lines from {larger[name]}; the limit is {limit}"
    for name in unneeded:
        yield f"{name} is within its limit, or gone: remove it from _LARGER"


def folder_errors(root: Path, folders: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yields a line for each import of a top-level folder that another one may not import."""
    for folder, allowed in folders.items():
        forbidden = folders.keys() - {folder, "shared_pathways_service", *allowed}
        for path in sorted((root / folder).rglob("*.py")):
            for imported in _imported(ast.parse(path.read_text())):
                if imported.partition(".")[0] in forbidden:
                    yield f"{path.relative_to(root)} imports {imported}"


def long_modules(root: Path, folders: Iterable[str]) -> Iterator[str]:
    """Yields a line for each module of these folders, at any depth, that is too long."""
    for folder in folders:
        for module, lines, limit in sizes(root, folder):
            if ":" not in module and lines > limit:
                yield f"{module} has {lines} lines; the limit is {limit}"


def crowded_folders(root: Path, folders: Iterable[str]) -> Iterator[str]:
    """Yields a line for each folder, at any depth, that has too many modules."""
    for folder in folders:
        modules = [
            path.parent
            for path in (root / folder).rglob("*.py")
            if not path.stem.endswith(("_pb2", "_pb2_grpc", "__init__"))
        ]
        for found, count in sorted(Counter(modules).items()):
            if count > _FOLDER_FILES:
                name = found.relative_to(root)
                yield f"{name} has {count} modules; the limit is {_FOLDER_FILES}"


def name_errors(root: Path, package: str, shared: Collection[str]) -> Iterator[str]:
    """Yields a line for each name of several modules that do not share it."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / package).rglob("*.py")):
        if path.parent != root / package / "events" and path.stem not in shared:
            found.setdefault(path.stem, []).append(str(path.relative_to(root)))
    for paths in found.values():
        if len(paths) > 1:
            yield f"{', '.join(paths)} do unlike things? (_SHARED_NAMES)"


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def errors(
    root: Path, package: str, *, larger: Mapping[str, int], circular: Collection[tuple[str, str]]
) -> list[str]:
    """Returns a line for each broken rule.

    Args:
      root: The folder that contains the package; must be on the path of imports.
      package: Its name.
      larger: Lines of what may exceed its limit.
      circular: Imports, by importer and imported module, that may be part of a circle.
    """
    return [
        *circle_errors(package, circular),
        *size_errors(sizes(root, package), larger),
    ]


def kept_result_errors(root: Path) -> list[str]:
    """Returns a line for each kept result that is not as the tool that measured it wrote it."""
    return list(importlib.import_module("harness.results").errors(root))


def main() -> int:
    """Prints what breaks a rule; returns 1 if there is any."""
    root = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root))
    found = errors(root, "shared_pathways_service", larger=_LARGER, circular=_CIRCULAR)
    found += folder_errors(root, _FOLDERS)
    found += long_modules(root, [*_FOLDERS.keys() - {"shared_pathways_service"}, "scripts"])
    found += crowded_folders(root, _FOLDERS)
    found += name_errors(root, "shared_pathways_service", _SHARED_NAMES)
    found += kept_result_errors(root)
    for error in found:
        print(error)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
