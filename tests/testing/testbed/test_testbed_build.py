"""Where the control plane cannot be built: said clearly, skipped loudly, and a failure in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.layers.needed_programs import needed_program
from harness.processes import DEADLINE_S, REPOSITORY
from shared_pathways_service.testing.testbed import TestbedUnavailable
from shared_pathways_service.testing.testbed.build import find_or_build
from shared_pathways_service.testing.testbed.launching import INSTALL_UTIL_LINUX
from shared_pathways_service.testing.testbed.patches import Patch


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is the whole PATH, without Go."""
    path = tmp_path / "programs"
    path.mkdir()
    (path / "setpriv").symlink_to(needed_program("setpriv", INSTALL_UTIL_LINUX))
    (path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(path))
    return path


def _go_that_is(version: str, programs: Path) -> None:
    script = programs / "go"
    script.write_text(f"#!/bin/sh\necho {version}\n")
    script.chmod(0o755)


def test_no_go(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(TestbedUnavailable, match=r"no program `go` \(install Go 1\.26 or newer"):
        find_or_build(tmp_path, print)


def test_go_that_is_too_old(programs: Path, tmp_path: Path) -> None:
    _go_that_is("go1.22.5", programs)
    with pytest.raises(
        TestbedUnavailable, match=r"needs Go 1\.26 or newer, and `go` is go1\.22\.5"
    ):
        find_or_build(tmp_path, print)


def test_go_that_fails_says_why(programs: Path, tmp_path: Path) -> None:
    script = programs / "go"
    script.write_text(
        '#!/bin/sh\n[ "$1" = env ] && echo go1.26.0 && exit\necho no such module >&2\nexit 1\n'
    )
    script.chmod(0o755)
    with pytest.raises(TestbedUnavailable, match=r"go list .* failed: no such module"):
        find_or_build(tmp_path, lambda _line: None)


def test_patch_is_for_one_version_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.go").write_text("one two two\n")
    patch = Patch(module="m", changes={"a.go": (("one", "three"),)})
    made = patch.apply(tmp_path / "source", tmp_path / "copy")
    assert (made / "a.go").read_text() == "three two two\n"
    stale = Patch(module="m", changes={"a.go": (("two", "x"),)})
    with pytest.raises(TestbedUnavailable, match="has not once 'two'"):
        stale.apply(tmp_path / "source", tmp_path / "other")


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_go_tests_are_skipped_loudly_and_fail_in_ci(programs: Path, ci: str) -> None:
    target = "tests/testing/testbed/test_testbed_access.py::test_user_with_rules_of_its_own"
    done = _pytest(target, ci=ci)
    if ci:
        assert "1 error" in done.stdout, done.stdout
        assert done.returncode == 1
    else:
        assert "1 skipped" in done.stdout, done.stdout
        assert "NO TESTBED, its tests are skipped" in done.stderr
        assert "install Go 1.26 or newer" in done.stdout


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_setpriv_tests_are_skipped_and_fail_in_ci(programs: Path, ci: str) -> None:
    (programs / "setpriv").unlink()
    # (These start a testbed themselves.)
    done = _pytest(
        "tests/testing/testbed/test_testbed_cli.py::test_up_until_a_signal[SIGTERM]",
        "tests/testing/testbed/test_testbed_life.py::test_killed_testbed_leaves_no_process[owner]",
        ci=ci,
    )
    if ci:
        assert "2 errors" in done.stdout, done.stdout
        assert done.returncode == 1
    else:
        assert "2 skipped" in done.stdout, done.stdout
        assert done.returncode == 0
    assert "`setpriv`, and there is no such program (install util-linux" in done.stdout


@pytest.mark.parametrize("is_for_the_layer", [False, True])
def test_only_a_run_for_the_layer_builds(programs: Path, is_for_the_layer: bool) -> None:
    script = programs / "go"
    built = programs / "built"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = env ] && echo go1.26.0 && exit\n: > {built}\necho no >&2\nexit 1\n'
    )
    script.chmod(0o755)
    targets = ["tests/manifests/test_on_a_real_server.py"]
    if not is_for_the_layer:
        targets.append("tests/manifests/test_names.py")
    done = _pytest(*targets)
    assert built.exists() == is_for_the_layer
    assert done.returncode == 0, done.stdout
    assert (" passed" in done.stdout) != is_for_the_layer
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(skipped) == 1
    reason = (
        "go list .* failed: no" if is_for_the_layer else "no testbed is built: `pytest -m testbed`"
    )
    assert re.search(reason, skipped[0])


def _pytest(*targets: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """Runs tests with the cache directory of this test, which is empty."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *targets],
        cwd=REPOSITORY,
        env={**os.environ, "CI": ci, "PYTEST_XDIST_WORKER": ""},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 5,
        check=False,
    )
