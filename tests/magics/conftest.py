"""A shell of IPython with the magic, whose displays are recorded."""

from __future__ import annotations

import atexit
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.connection.conftest import bench

__all__ = ["Shell", "bench", "shell", "shown_text"]


class Shell:
    """Runs lines as cells, and notes what they display."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.displayed: list[str] = []
        shell.display_pub.publish = self._publish
        self.run("%load_ext shared_pathways_service")

    def run(self, line: str) -> Any:
        """Returns the value of a cell."""
        result = self.shell.run_cell(line)
        assert result.success, result.error_in_exec
        return result.result

    def fail(self, line: str) -> BaseException:
        """Returns the error of a cell."""
        error = self.shell.run_cell(line).error_in_exec
        assert isinstance(error, BaseException)
        return error

    def complete(self, text: str) -> list[str]:
        with provisionalcompleter():
            found = self.shell.Completer.completions(text, len(text))
            return [text[: one.start] + one.text for one in found]

    def _publish(self, data: dict[str, Any], *_args: Any, **_keywords: Any) -> None:
        self.displayed.append(data.get("text/html", ""))


@pytest.fixture
def shell(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setenv("IPYTHONDIR", str(own_directories / "ipython"))
    config = Config()
    config.HistoryManager.enabled = False
    made: Any = InteractiveShell.instance(config=config)
    yield Shell(made)
    atexit.unregister(made.atexit_operations)
    made.atexit_operations()
    InteractiveShell.clear_instance()


def shown_text(written: str) -> list[str]:
    """Returns the lines of an output without colors."""
    return re.sub(r"\x1b\[[0-9;]*m", "", written).splitlines()
