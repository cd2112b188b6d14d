"""Runs `scripts/test`'s runner on small suites of a test's own."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.deadlines import wait_until
from harness.processes import REPOSITORY

__all__ = ["Ended", "run_suite"]

_CONFTEST = 'pytest_plugins = ("harness.layers.plugin", "harness.suite.recorder")\n'
_CONFIGURATION = """
[pytest]
addopts = -ra --strict-markers -p no:cacheprovider -p xdist
testpaths = tests
markers =
    heavy: alone
    thorough: with --long only
"""


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run that ended.

    Attributes:
      code: Its exit code.
      output: Its standard output and error.
      root: The directory of the suite.
    """

    code: int
    output: str
    root: Path

    @property
    def last_line(self) -> str:
        return self.output.splitlines()[-1]

    @property
    def kept(self) -> list[Path]:
        """The files of failures that are kept."""
        return sorted((self.root / "cache" / "flakes").glob("*"))


def run_suite(
    root: Path,
    modules: Mapping[str, str],
    *,
    options: Sequence[str] = (),
    interrupt_at: Path | None = None,
    by: signal.Signals = signal.SIGINT,
) -> Ended:
    """Runs a suite to its end.

    Args:
      root: An empty directory.
      modules: Sources by the name of the module, which may be in a folder.
      options: Of the runner.
      interrupt_at: The run is ended when this file is there; None: never.
      by: Ctrl-C, or another signal, which the runner alone gets.
    """
    tests = root / "tests"
    tests.mkdir(parents=True)
    (root / "pytest.ini").write_text(_CONFIGURATION)
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(_CONFTEST)
    for name, source in modules.items():
        path = tests / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(source))
    environment = {
        **os.environ,
        "CI": "",
        # (They take most of the time of a start.)
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_XDIST_WORKER": "",
        "PYTHONPATH": str(REPOSITORY),
        "SPS_CACHE_DIR": str(root / "cache"),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "harness.suite", *options],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        if interrupt_at is not None:
            wait_until("the run to come to its test", interrupt_at.exists)
            # A terminal sends its signal to all of its processes.
            (os.killpg if by == signal.SIGINT else os.kill)(process.pid, by)
        output, _ = process.communicate()
    return Ended(process.returncode, output, root)
