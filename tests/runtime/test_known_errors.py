"""Errors that Google's page lists, as the stand-ins for Google's images write them."""

from __future__ import annotations

import pytest

from shared_pathways_service.runtime.known_errors import find_known_error
from shared_pathways_service.testing.google_images.log_texts import GUESSED, PUBLISHED

HEAD = "E1208 20:10:04.992524       7 "


@pytest.mark.parametrize(
    ("name", "cause", "advice"),
    [
        ("the bucket is missing", "does not exist", "create the bucket"),
        ("the bucket has no room for rules", "no room for another lifecycle rule", "delete"),
    ],
)
def test_a_bucket(name: str, cause: str, advice: str) -> None:
    log = f"I1208 argv[1]: 'x'\n{HEAD}{PUBLISHED[name].line()}\n"
    error = find_known_error(log)
    assert error is not None
    assert cause in error.cause
    assert advice in error.hint
    assert "gcs_bucket=" in error.hint
    assert error.is_permanent


def test_a_full_memory_is_both_words() -> None:
    full = HEAD + GUESSED["memory is exhausted"].line(reason="an array")
    stopped = HEAD + PUBLISHED["a signal"].line(pid=1, sender=0)
    error = find_known_error(f"{full}\n{stopped}")
    assert error is not None
    assert "HBM" in error.cause
    assert "less memory" in error.hint
    assert not error.is_permanent
    # Each alone is ordinary: a refused program, and a pod that was deleted.
    assert find_known_error(full) is None
    assert find_known_error(stopped) is None


def test_other_logs_are_not_explained() -> None:
    assert find_known_error("") is None
    assert find_known_error("the specified slice does not exist") is None
