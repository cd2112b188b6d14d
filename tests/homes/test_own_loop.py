"""A coroutine on a thread of its own ends with the call that waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest

from shared_pathways_service.homes.own_loop import run_in_own_loop
from tests.homes.interrupts import Interrupt

T = TypeVar("T")


def test_it_runs_where_a_loop_runs_already() -> None:
    async def add(value: int) -> int:
        return value + 1

    async def main() -> int:
        return run_in_own_loop(add(1))

    assert asyncio.run(main()) == 2


def test_ctrl_c_cancels_it() -> None:
    cleaned_up: list[bool] = []

    async def endless() -> None:
        try:
            await interrupt.send()
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(True)

    with Interrupt() as interrupt, pytest.raises(KeyboardInterrupt):
        run_in_own_loop(endless())
    assert cleaned_up


def test_ctrl_c_while_its_thread_starts_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(concurrent.futures.ThreadPoolExecutor):
        def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
            super().submit(fn, *args, **kwargs)
            raise KeyboardInterrupt

    cleaned_up = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(True)

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_in_own_loop(endless())
    assert cleaned_up


def test_ctrl_c_after_its_loop_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(concurrent.futures.ThreadPoolExecutor):
        def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
            super().submit(fn, *args, **kwargs).result()
            raise KeyboardInterrupt

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Late)
    with pytest.raises(KeyboardInterrupt):
        run_in_own_loop(asyncio.sleep(0))
