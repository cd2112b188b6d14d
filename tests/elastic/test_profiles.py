"""Profiles are refused in elastic runs, also in runs that overlap, and not after them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from shared_pathways_service.elastic.training.profiling import refuse_profile, refusing_profiles
from shared_pathways_service.errors import InvalidRequestError


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Returns a function that takes a profile."""

    def take(start: Callable[..., Any] = jax.profiler.start_trace) -> None:
        start(str(tmp_path))
        jax.profiler.stop_trace()
        assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))

    yield take
    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()


def begin(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="elastic run"):
        jax.profiler.start_trace(str(folder))
    with pytest.raises(InvalidRequestError, match="elastic run"), jax.profiler.trace(str(folder)):
        pass


def test_runs_that_overlap(tmp_path: Path, works: Callable[..., None]) -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(refusing_profiles())
        second.enter_context(refusing_profiles())
        begin(tmp_path)
        first.close()
        begin(tmp_path)
    works()


def test_what_is_wrapped_in_a_run_works_after_it(works: Callable[..., None]) -> None:
    with refusing_profiles():
        wrapped = functools.partial(jax.profiler.start_trace)
    works(wrapped)


def test_a_function_that_another_library_puts_in_place_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing_profiles():
        pass
    monkeypatch.setattr(jax.profiler, "start_trace", lambda _folder: pytest.fail("it began"))
    with refusing_profiles(), pytest.raises(InvalidRequestError, match="elastic run"):
        jax.profiler.start_trace(str(tmp_path))


def test_a_run_does_not_begin_in_a_profile(tmp_path: Path) -> None:
    with jax.profiler.trace(str(tmp_path)), pytest.raises(InvalidRequestError, match="is active"):
        refuse_profile()
    refuse_profile()
