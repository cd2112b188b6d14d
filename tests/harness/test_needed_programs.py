"""A program that is missing skips a test, and fails it in CI."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.layers.needed_programs import needed_program


def test_a_program_that_is_there() -> None:
    found = shutil.which("sh")
    assert found is not None
    assert needed_program("sh", "install it") == Path(found)


@pytest.mark.parametrize("ci", ["", "false", None])
def test_a_missing_program_skips(monkeypatch: pytest.MonkeyPatch, ci: str | None) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="no such-program: install it"):
        needed_program("such-program", "install it")


def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="no such-program: install it"):
        needed_program("such-program", "install it")
