"""Lanes of calls, and the names of the functions that are called."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest

from shared_pathways_service.jax_client.plugin.callback_lanes import Call, Lanes, NotCalled
from shared_pathways_service.jax_client.plugin.callback_names import name_of


def noting(seen: list[Any], number: int, *, fails: bool = False) -> Call:
    def call(not_called: NotCalled | None) -> bool:
        seen.append((number, not_called is None))
        return not fails and not_called is None

    return call


def test_the_calls_of_a_lane_are_made_in_order_by_one_thread() -> None:
    seen: list[Any] = []
    lanes = Lanes()
    first = lanes.enter(5, noting(seen, 1))
    assert first is not None
    assert lanes.enter(5, noting(seen, 2)) is None
    other = lanes.enter(6, noting(seen, 3))
    free = lanes.enter(0, noting(seen, 4))
    assert other is not None
    assert free is not None
    free(), other(), first()
    assert [number for number, _ in seen] == [4, 3, 1, 2]
    # The next one finds the lane free.
    again = lanes.enter(5, noting(seen, 5))
    assert again is not None
    again()
    assert seen[-1] == (5, True)


def test_a_call_that_comes_while_another_is_made_waits_for_it() -> None:
    seen: list[Any] = []
    lanes = Lanes()

    def slow(_: NotCalled | None) -> bool:
        assert lanes.enter(1, noting(seen, 2)) is None
        seen.append((1, True))
        return True

    work = lanes.enter(1, slow)
    assert work is not None
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(1, True), (2, True)]


def test_after_one_that_failed_the_others_of_its_lane_are_not_called() -> None:
    seen: list[Any] = []
    lanes = Lanes()
    work = lanes.enter(1, noting(seen, 1, fails=True))
    assert work is not None
    lanes.enter(1, noting(seen, 2))
    work()
    later, other = lanes.enter(1, noting(seen, 3)), lanes.enter(2, noting(seen, 4))
    assert later is not None
    assert other is not None
    later(), other()
    assert seen == [(1, True), (2, False), (3, False), (4, True)]


def test_a_lane_that_failed_is_remembered_while_another_has_many_calls() -> None:
    seen: list[Any] = []
    lanes = Lanes()
    for lane, calls in ((1, 1), (2, 1000)):
        work = lanes.enter(lane, noting(seen, lane, fails=True))
        assert work is not None
        for _ in range(calls - 1):
            assert lanes.enter(lane, noting(seen, lane)) is None
        work()
    work = lanes.enter(1, noting(seen, 3))
    assert work is not None
    work()
    assert seen[-1] == (3, False)


class Shown:
    def method(self) -> None:
        pass

    def __call__(self) -> None:
        pass


class Unfamiliar:
    def __call__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def wrapped_as_jax_does(function: Any) -> Any:
    def _wrapped_callback() -> Any:
        return function()

    _wrapped_callback.__module__ = "jax._src.callback"
    return functools.partial(_wrapped_callback)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Shown().method, "Shown.method"),
        (Shown(), "Shown"),
        (noting([], 1), "call"),
        (functools.partial(len), "len"),
        (lambda: None, "<lambda>"),
    ],
)
def test_the_name_of_a_function_that_jax_has_wrapped(function: Any, name: str) -> None:
    assert name_of(wrapped_as_jax_does(function)) == name
    assert name_of(wrapped_as_jax_does(None)) == "a function of JAX"


def test_the_name_of_a_callable_whose_attributes_raise_errors() -> None:
    assert name_of(Unfamiliar()) == "Unfamiliar"
    assert name_of(wrapped_as_jax_does(Unfamiliar())) == "Unfamiliar"
