"""Servers of a test in a thread with an event loop of its own, for clients in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

from harness.deadlines import deadline

T = TypeVar("T")


class Background:
    """An event loop in a thread. Use `background`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        # Names are looked up in it. (Its thread starts now, not during one of several tests.)
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="background-lookups")
        self._lookups.submit(lambda: None).result()
        self._loop.set_default_executor(self._lookups)
        self._thread = threading.Thread(target=self._loop.run_forever, name="background")
        self._thread.start()

    def enter(self, server: AbstractAsyncContextManager[T]) -> T:
        """Starts a server that runs until the end."""
        return self.run(self._stack.enter_async_context(server))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(deadline(60.0))

    def close(self) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._lookups.shutdown()


@contextlib.contextmanager
def background() -> Iterator[Background]:
    made = Background()
    try:
        yield made
    finally:
        made.close()
