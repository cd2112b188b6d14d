"""`sps hotswap` refuses what does not go together before it looks for a cluster."""

from __future__ import annotations

import pytest

from harness.programs import sps


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--image=x"], "--image"),
        (["--create", "--command='a b"], "--command"),
        (["--no-restore"], "--no-restore"),
        (["--high=a", "--low=a"], "--low"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], named: str) -> None:
    done = sps("hotswap", *words, check=False)
    assert done.returncode == 2, done.stderr
    assert f"error: {named}" in done.stderr
