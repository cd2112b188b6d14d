"""Each test gets the marker of its layer, and a test of layer unit starts no process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.layers.process_starts import noticing_process_starts
from tests.suite.small_suites import run_suite

SOURCES = {
    "helpers": """
        import contextlib, subprocess, sys

        class Server:
            def start(self):
                self.process = subprocess.Popen([sys.executable, "-c", "pass"])
                self.process.wait()

        @contextlib.contextmanager
        def server():
            made = Server()
            made.start()
            yield made

        def pure(): return 1
    """,
    "test_layers": """
        import functools

        import pytest

        from tests import helpers
        from tests.helpers import pure, server

        def layer(request):
            names = {"unit", "local", "testbed", "long"}
            [found] = {mark.name for mark in request.node.iter_markers()} & names
            return found

        @pytest.fixture
        def running():
            with server() as made:
                yield made

        @pytest.fixture
        def testbed_programs(): pass

        @pytest.fixture
        def cluster(testbed_programs): pass

        def test_pure(request):
            assert pure() and helpers.pure()
            assert layer(request) == "unit"

        def test_fixture(request, running):
            assert layer(request) == "local"

        def test_method(request):
            helpers.Server().start()
            assert layer(request) == "local"

        def test_import_in_the_body(request):
            import subprocess
            subprocess.run(["true"])
            assert layer(request) == "local"

        def test_wrapped(request):
            functools.partial(start_one)()
            assert layer(request) == "local"

        start_one = functools.partial(functools.lru_cache(helpers.Server().start))

        def test_control_plane(request, cluster):
            assert layer(request) == "testbed"

        @pytest.mark.local
        def test_marked(request):
            assert layer(request) == "local"
            __import__("os").system("true")
    """,
}


def test_layers_are_found_by_what_code_reaches(tmp_path: Path) -> None:
    ended = run_suite(tmp_path, SOURCES)
    assert ended.code == 0, ended.output
    # (That of layer testbed is not run.)
    assert ended.last_line == "6 passed, 0 failed, 0 skipped"
    assert "== mixed: 6 tests" in ended.output


def test_a_unit_test_that_starts_a_process_fails(tmp_path: Path) -> None:
    source = """
        import importlib

        import pytest

        @pytest.fixture
        def hidden():
            importlib.import_module("os").system("true")

        def test_in_its_body():
            importlib.import_module("sub" + "process").run(["true"])

        def test_in_its_fixture(hidden): pass
    """
    ended = run_suite(tmp_path, {"test_hidden": source})
    assert ended.code == 1
    assert ended.last_line == "0 passed, 2 failed, 0 skipped"
    assert "a test of layer unit started a process: subprocess.Popen('true'" in ended.output
    assert "a test of layer unit started a process: os.system" in ended.output


@pytest.mark.local
def test_each_way_to_start_a_process_is_noticed() -> None:
    with noticing_process_starts() as outer:
        with noticing_process_starts() as inner:
            subprocess.run(["true"], check=True)
            pid = os.posix_spawn("/bin/true", ["true"], {})
            os.waitpid(pid, 0)
        os.system("true")
    assert [event.partition("(")[0] for event in inner] == ["subprocess.Popen", "os.posix_spawn"]
    assert [event.partition("(")[0] for event in outer[2:]] == ["os.system"]
    subprocess.run(["true"], check=True)
    assert len(outer) == 3
