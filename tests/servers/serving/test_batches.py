"""Queued items as messages of a stream."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from shared_pathways_service.servers.serving import batches as module
from shared_pathways_service.servers.serving.batches import batches


def queue_of(*items: bytes | None) -> queue.SimpleQueue[bytes | None]:
    made: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for item in items:
        made.put(item)
    return made


def all_batches(*items: bytes, most: int = 9) -> list[list[bytes]]:
    return list(batches(queue_of(*items, None), most, len))


def test_waiting_items_form_one_message() -> None:
    assert all_batches(b"a", b"bb", b"c") == [[b"a", b"bb", b"c"]]
    assert all_batches() == []


def test_a_message_has_so_many_items() -> None:
    assert all_batches(b"a", b"b", b"c", most=2) == [[b"a", b"b"], [b"c"]]


def test_a_message_has_so_many_bytes_unless_one_item_has_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 4)
    assert all_batches(b"aa", b"bb", b"c", b"ddddd", b"e") == [
        [b"aa", b"bb"],
        [b"c"],
        [b"ddddd"],
        [b"e"],
    ]


def test_a_message_does_not_wait_for_more_items() -> None:
    items = queue_of(b"a")
    made: Iterator[list[bytes]] = batches(items, 9, len)
    assert next(made) == [b"a"]
    items.put(b"b")
    items.put(None)
    assert list(made) == [[b"b"]]
