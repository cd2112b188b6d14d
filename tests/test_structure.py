"""`scripts/structure.py`, which `scripts/check` runs: circles, sizes, and imports of folders."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_SCRIPT = runpy.run_path(str(_ROOT / "scripts" / "structure.py"))

Check = Callable[..., list[str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.syspath_prepend(tmp_path)

    def checked(
        files: dict[str, str],
        *,
        larger: dict[str, int] | None = None,
        circular: tuple[tuple[str, str], ...] = (),
    ) -> list[str]:
        for name, text in {"__init__": "", **files}.items():
            path = tmp_path / "tried" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        found: list[str] = _SCRIPT["errors"](
            tmp_path, "tried", larger=larger or {}, circular=circular
        )
        return found

    return checked


@pytest.mark.parametrize(
    "hidden",
    [
        "import tried.one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tried.one import NAME",
        "def late():\n    from tried.one import NAME\n    return NAME",
    ],
    ids=["plain", "type_checking", "function"],
)
def test_that_every_kind_of_import_counts_for_circles(check: Check, hidden: str) -> None:
    found = check({"one": "from tried import two\nNAME = two", "two": hidden})
    assert found == ["circular imports: tried.one, tried.two"]


def test_that_the_package_itself_counts_for_circles(check: Check) -> None:
    found = check({"__init__": "from tried.one import NAME", "one": "import tried\nNAME = 1"})
    assert found == ["circular imports: tried, tried.one"]


def test_that_a_known_circular_import_must_still_exist(check: Check) -> None:
    circular = (("tried.two", "tried.one"),)
    files = {"one": "import tried.two", "two": "import tried.one"}
    assert check(files, circular=circular) == []
    assert check({**files, "two": ""}, circular=circular) == [
        "tried.two does not import tried.one: remove it from _CIRCULAR"
    ]


def test_that_docstrings_do_not_count_for_functions(check: Check) -> None:
    documented = '    """One.\n\n    Two.\n    """\n' + "    pass\n" * 59
    assert check({"one": f"def f():\n{documented}"}) == []
    assert check({"one": f"def f():\n{documented}    pass\n"}) == [
        "tried.one:f has 61 lines; the limit is 60"
    ]


def test_that_methods_count_for_themselves_and_for_their_class(check: Check) -> None:
    body = "        pass\n" * 60
    methods = "".join(f"    def f{n}(self):\n{body}" for n in range(7))
    found = check({"one": f"class C:\n{methods}"})
    assert found[0] == "tried.one:C has 428 lines; the limit is 400"
    assert found[1:] == [f"tried.one:C.f{n} has 61 lines; the limit is 60" for n in range(7)]


def test_that_modules_have_a_limit(check: Check) -> None:
    assert check({"one": "pass\n" * 601}) == ["tried.one has 601 lines; the limit is 600"]
    assert check({"one": "pass\n" * 600}) == []


def test_that_modules_outside_of_the_package_have_a_limit(tmp_path: Path) -> None:
    (tmp_path / "tests" / "inner").mkdir(parents=True)
    function = "def test_long():\n" + "    pass\n" * 599
    for name, text in {"test_one": function, "inner/test_two": f"{function}    pass\n"}.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    assert list(_SCRIPT["long_modules"](tmp_path, ["tests"])) == [
        "tests.inner.test_two has 601 lines; the limit is 600"
    ]


def test_that_exceptions_may_only_shrink(check: Check) -> None:
    assert check({"one": "pass\n" * 610}, larger={"tried.one": 610}) == []
    assert check({"one": "pass\n" * 611}, larger={"tried.one": 610}) == [
        "tried.one has grown to 611 lines from 610; the limit is 600"
    ]
    assert check({"one": "pass\n" * 600}, larger={"tried.one": 610}) == [
        "tried.one is within its limit, or gone: remove it from _LARGER"
    ]


def test_that_a_folder_imports_only_what_it_may(tmp_path: Path) -> None:
    files = {
        "tests/test_one.py": "from stress import soak\nimport benchmarks.speed\nimport harness",
        "stress/soak.py": "def late():\n    from tests.test_one import NAME\n    return NAME",
        "harness/service.py": "import shared_pathways_service",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = _SCRIPT["folder_errors"](tmp_path, _SCRIPT["_FOLDERS"])
    assert list(found) == [
        "stress/soak.py imports tests.test_one",
        "tests/test_one.py imports benchmarks.speed",
    ]


def test_that_a_folder_has_a_limit(tmp_path: Path) -> None:
    names = [*(f"m{n}" for n in range(30)), "__init__", "m_pb2", "m_pb2_grpc"]
    inner = tmp_path / "tests" / "inner"
    inner.mkdir(parents=True)
    for name in names:
        (inner / f"{name}.py").touch()
    assert not list(_SCRIPT["crowded_folders"](tmp_path, ["tests"]))
    (inner / "one_more.py").touch()
    assert list(_SCRIPT["crowded_folders"](tmp_path, ["tests"])) == [
        "tests/inner has 31 modules; the limit is 30"
    ]


def test_that_unlike_modules_have_unlike_names(tmp_path: Path) -> None:
    for name in ("one/flags", "two/flags", "one/status", "two/status", "events/status"):
        path = tmp_path / "tried" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert list(_SCRIPT["name_errors"](tmp_path, "tried", {"flags"})) == [
        "tried/one/status.py, tried/two/status.py do unlike things? (_SHARED_NAMES)"
    ]
