"""Answers that take long to find, for pages that ask again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

__all__ = ["SeldomRead"]

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")
#: Of the time of a page, at most this part is spent on finding one answer.
_PART: Final = 0.1


class SeldomRead(Generic[_Key, _Answer]):
    """Finds one answer at a time, and each again only after ten times as long as that took.

    Args:
      most: Answers that are kept, the latest ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: With the time (monotonic) from which on it is to be found anew.
        self._kept: dict[_Key, tuple[_Answer, float]] = {}
        self._lock = asyncio.Lock()

    async def get(self, key: _Key, find: Callable[[_Answer | None], Awaitable[_Answer]]) -> _Answer:
        """Returns the answer for a key.

        Args:
          key: What is asked for.
          find: Finds the answer, and gets the one before; None: there is none. What it raises is
            not kept.
        """
        async with self._lock:
            known, not_before = self._kept.get(key, (None, 0.0))
            began = time.monotonic()
            if known is not None and began < not_before:
                return known
            found = await find(known)
            ended = time.monotonic()
            self._kept.pop(key, None)
            while len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = (found, ended + (ended - began) / _PART)
            return found
