"""The step of a command on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from shared_pathways_service.cli.display.step_display import showing_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_present_step(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    with showing_progress() as tell:
        tell("packing /work")
        assert "sps: packing /work" in terminal.getvalue()
        tell("uploading to gs://bucket/" + "x" * 80)
        shown = terminal.getvalue()
        assert "sps: uploading to gs://bucket/xx" in shown
        assert "x" * 60 not in shown
    # Then the line is erased.
    assert terminal.getvalue().endswith("\x1b[2K")


def test_other_outputs_get_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_progress() as tell:
        tell("packing /work")
    assert capsys.readouterr() == ("", "")
