"""Deadlines of tests are longer on a slow machine: they are no plain numbers (ADR 145)."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.patience.assignments import assigned

_ROOT = Path(__file__).resolve().parents[2]
_THIS = Path(__file__).resolve()
_FOLDERS = ("tests", "harness", "stress")

#: Names of deadlines.
_DEADLINE = re.compile(r"(?:^|_)(?:DEADLINE|LIMIT|WAIT)_S$")
#: What waits for at most a time-out: methods and functions by their last name; those whose last
#: argument may be it without a name; and functions by their whole name that always have it last.
_TAKES_TIMEOUT = ("communicate", "get", "join", "result", "run", "urlopen", "wait")
_UNNAMED = ("join", "result", "settimeout", "wait")
_LAST = ("asyncio.timeout", "asyncio.wait_for")
#: What a moment is added to.
_NOW = ("time.monotonic()",)
#: The same in programs, which are texts.
_IN_TEXT = re.compile(
    r"(?:\.(?:communicate|get|join|wait)\((?:[^()\n]*, )?timeout=|\.(?:join|wait)\("
    r"|\btime\.monotonic\(\) \+ )(\d[\d.]*)(?=\)|$)",
    re.MULTILINE,
)
#: With less a test looks whether something has not happened yet, and does not wait for it.
_LEAST_S = 1.0

#: What may be a plain number.
_PLAIN: Mapping[str, Collection[str]] = {
    # Programs that people run where nothing else runs: benchmarks, and a recording.
    "harness/own_service.py": {"process.wait(60)"},
    "harness/results.py": {"self.watch.communicate(30)"},
    "harness/testbed/record_cut_link.py": {"_DEADLINE_S", "child.wait(10)"},
    # Checks and a benchmark with one limit for all machines.
    "harness/jax_checks/callback_order.py": {
        *("goes_on.wait(60)", "waits.wait(60)", "together.wait(60)")
    },
    "tests/servers/proxy/jax/test_distributed_benchmark.py": {"subprocess.run(240)"},
}


def literal_deadlines(
    root: Path, folders: Iterable[str], plain: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """Yields a line for each deadline that is a plain number."""
    unneeded = {f"{name}: {what}" for name, known in plain.items() for what in known}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if path == _THIS:
                continue
            name = path.relative_to(root).as_posix()
            for line, what in _found_in(ast.parse(path.read_text())):
                unneeded.discard(f"{name}: {what}")
                if what not in plain.get(name, ()):
                    yield f"{name}:{line}: {what}: use harness.deadlines"
    for entry in sorted(unneeded):
        yield f"{entry} is gone: remove it from _PLAIN"


def _found_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for name, value in assigned(node):
                if _DEADLINE.search(name) and _is_long(value):
                    yield node.lineno, name
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            for timeout in filter(_is_long, _timeouts_of(node, function)):
                yield node.lineno, f"{function}({ast.unparse(timeout)})"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            if ast.unparse(node.left) in _NOW and _is_long(node.right):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((node.lineno, what) for what in _found_in_text(node.value))


def _found_in_text(text: str) -> Iterator[str]:
    for found in _IN_TEXT.finditer(text):
        if float(found[1]) >= _LEAST_S:
            yield found[0]


def _timeouts_of(call: ast.Call, function: str) -> Iterator[ast.expr]:
    """Yields what a call may have as its time-out."""
    last = function.rpartition(".")[2]
    if last in _TAKES_TIMEOUT:
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "timeout")
    if (last in _UNNAMED and len(call.args) == 1) or (function in _LAST and call.args):
        yield call.args[-1]


def _is_long(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_long(value.left) and _is_long(value.right)
    if not isinstance(value, ast.Constant) or isinstance(value.value, bool):
        return False
    return isinstance(value.value, int | float) and value.value >= _LEAST_S


def test_deadlines_are_no_plain_numbers() -> None:
    assert list(literal_deadlines(_ROOT, _FOLDERS, _PLAIN)) == []


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("DEADLINE_S = 60.0", True),
        ("_LIMIT_S: Final = 2 * 60", True),
        ("COUNT, _WAIT_S = 1, 90.0", True),
        ("DEADLINE_S = deadline(60.0)", False),
        ("DEADLINES = 60", False),
        ("heard.get(timeout=150)", True),
        ("process.communicate('end', timeout=60)", True),
        ("thread.join(timeout=2 * 30)", True),
        ("process.wait(60)", True),
        ("asyncio.wait_for(queue.get(), 60)", True),
        ("asyncio.timeout(90.0)", True),
        ("subprocess.run(command, timeout=60)", True),
        ("heard.get(timeout=DEADLINE_S)", False),
        ("process.wait(2 * DEADLINE_S)", False),
        ("assert not event.wait(0.2)", False),
        ("end = time.monotonic() + 150", True),
        ("end = time.monotonic() + DEADLINE_S", False),
        ("soon = time.monotonic() + 0.2", False),
        ("program('end = time.monotonic() + 150')", True),
        ("program('end = time.monotonic() + 150 * slow')", False),
        ("values.get('a', 0)", False),
        ("api.get(path, timeout_s=60)", False),
        ("program('x = heard.get(timeout=150)')", True),
        ("program('assert event.wait(60)')", True),
        ("program('x = heard.get(timeout=deadline(150))')", False),
    ],
)
def test_a_literal_deadline_is_found(source: str, *, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / "test_one.py").write_text(source)
    assert bool(list(literal_deadlines(tmp_path, ["tried"], {}))) is is_found


def test_an_exception_without_need_is_found(tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / "test_one.py").write_text("process.wait(60)\n")
    known = {"tried/test_one.py": {"process.wait(60)", "process.wait(90)"}}
    found = list(literal_deadlines(tmp_path, ["tried"], known))
    assert found == ["tried/test_one.py: process.wait(90) is gone: remove it from _PLAIN"]
