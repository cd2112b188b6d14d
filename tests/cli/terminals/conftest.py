"""Each test of this folder runs its programs twice: alone, and as `sps run` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminals.shells import (
    DIALECTS,
    Shell,
    exceptions_of,
    make_programs,
    needed_by,
    require,
    shell,
)


@pytest.fixture(params=["alone", "under"])
def run(request: pytest.FixtureRequest) -> str:
    """What stands before a command in a shell's line."""
    return {"alone": "", "under": "under "}[request.param]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs."""
    return make_programs(tmp_path_factory.mktemp("programs"))


# (Always before the fixtures' own parameters, also where pytest is given the files of this folder:
# the tests have the same names in all runs.)
@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_shell" in metafunc.fixturenames:
        left_out = exceptions_of(metafunc.function)
        names = [name for name in DIALECTS if name not in left_out]
        metafunc.parametrize("any_shell", names, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What other shells do alone, without any of our code, is known once it has been seen."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            chosen = item.callspec.params
            if chosen.get("run") == "alone" and chosen.get("any_shell", "bash") != "bash":
                item.add_marker(pytest.mark.thorough)


@pytest.fixture
def any_shell(request: pytest.FixtureRequest, programs: Path, tmp_path: Path) -> Iterator[Shell]:
    """Each interactive shell that is tested, in a terminal, in an empty directory."""
    if name := needed_by(request.function):
        require(name)
    with shell(request.param, programs, tmp_path) as started:
        yield started
