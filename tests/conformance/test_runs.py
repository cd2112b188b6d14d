"""Runs of a part of a suite: tests that hang, choose a platform, or are selected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import plugin
from conformance.runs import Run, Settings, run_directly, run_on_executors, run_through_proxy
from tests.conformance.parts import PREFIX


@dataclasses.dataclass
class Item:
    """What the plug-in reads of a collected test."""

    nodeid: str


def test_differing_tests_run_again_in_a_continued_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path / "results"))
    plugin.choose(tmp_path / "results", ["b", "d"], "c")
    items: list[Any] = [Item(name) for name in "abcde"]
    plugin.pytest_collection_modifyitems(items)
    assert items == [Item("d")]


#: The second ends neither by itself nor by pytest's timeout.
HANGS = """
import signal
import threading
import unittest

class OwnTest(unittest.TestCase):
    def test_a(self):
        pass

    def test_b(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        threading.Event().wait()

    def test_c(self):
        pass
"""


def test_a_hanging_test_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "own_test.py").write_text(HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    settings = Settings(directory=tmp_path, tests=["tests"], devices=8, test_timeout=4, timeout=600)
    found = run_directly(settings)

    assert found.passed == {f"{PREFIX}test_a", f"{PREFIX}test_c"}
    assert found.failed == {f"{PREFIX}test_b": "it hung"}
    assert (found.broken, found.not_reached) == ("", ())


#: The proxy is the default backend whatever the tests choose; a file that does not import is named.
CHOOSES = """
import jax

jax.config.update("jax_platform_name", "cpu")

def test_platform():
    assert jax.devices()[0].platform != "cpu"
"""


@pytest.mark.parametrize("run", [run_through_proxy, run_on_executors])
def test_tests_that_choose_the_cpu_run_through_the_proxy(
    tmp_path: Path, run: Callable[[Settings], Run]
) -> None:
    (tmp_path / "test_chooses.py").write_text(CHOOSES)
    (tmp_path / "test_wrong.py").write_text("import no_such_module")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    settings = Settings(directory=tmp_path, tests=["."], devices=1, test_timeout=60, timeout=600)
    found = run(settings)

    assert found.passed == {"test_chooses.py::test_platform"}
    assert found.backend == "proxy"
    assert set(found.failed) == {"test_wrong.py"}
    assert "no_such_module" in found.failed["test_wrong.py"]
    assert (found.broken, found.proxy, found.not_reached) == ("", "", ())
