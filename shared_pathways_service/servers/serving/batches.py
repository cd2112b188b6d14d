"""Puts queued items into batches, so that several of them form one message."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["BATCH_BYTES", "batches"]

T = TypeVar("T")

#: The most bytes of a batch, unless one item has more. (A message can have 2 GiB.)
BATCH_BYTES = 64 << 20


def batches(
    items: queue.SimpleQueue[Any], most: int, size_of: Callable[[T], int]
) -> Iterator[list[T]]:
    """Yields queued items in order; items that wait at the same time form one batch.

    Args:
      items: The queue, of T; None ends it. (mypy cannot infer T from a union with None.)
      most: The most items of a batch.
      size_of: Returns the bytes of an item.
    """
    batch: list[T] = []
    size = 0
    while (item := items.get()) is not None:
        size += size_of(item)
        if batch and (len(batch) >= most or size > BATCH_BYTES):
            yield batch
            batch, size = [], size_of(item)
        batch.append(item)
        if items.empty():
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
