"""What commands say, and what becomes of it where nobody can hear it."""

from __future__ import annotations

import sys

import pytest

from shared_pathways_service.cli.output import print_note


def test_without_standard_error_a_note_is_dropped(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", None)
        print_note("nobody hears it")
    print_note("somebody does")
    assert capfd.readouterr() == ("", "sps: somebody does\n")
