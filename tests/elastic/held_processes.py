"""Holds processes of a service back when they start, until a test lets them go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: Python runs it before a program, in each process of the service.
_CODE = """
import os, sys, time
if {module!r} in sys.orig_argv:
    while os.path.exists({file!r}):
        time.sleep(0.02)
"""


class HeldProcesses:
    """Processes that run one module; start the service after it is made.

    Args:
      module: The module's name, e.g. ``shared_pathways_service.servers.worker``.
    """

    def __init__(self, module: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = directory / "held"
        (directory / "sitecustomize.py").write_text(
            _CODE.format(module=module, file=str(self._file))
        )
        known = os.environ.get("PYTHONPATH")
        path = f"{directory}{os.pathsep}{known}" if known else str(directory)
        monkeypatch.setenv("PYTHONPATH", path)

    def hold(self) -> None:
        """Holds back those that start from now on."""
        self._file.touch()

    def let_go(self) -> None:
        """Lets them go on."""
        self._file.unlink()
