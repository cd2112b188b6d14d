"""Items and bytes as messages of a stream."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol.chunks import Chunk
from shared_pathways_service.servers.serving import send_queue as module
from shared_pathways_service.servers.serving.send_queue import SendQueue


def queue_of(*items: bytes, most: int = 9) -> SendQueue[bytes]:
    made: SendQueue[bytes] = SendQueue(most, len)
    for item in items:
        made.put(item)
    return made


def all_messages(*items: bytes, most: int = 9) -> list[list[bytes] | Chunk]:
    sending = queue_of(*items, most=most)
    sending.end()
    return list(sending.messages())


def data(*parts: bytes) -> Iterator[memoryview]:
    return map(memoryview, parts)


def test_waiting_items_form_one_message() -> None:
    assert all_messages(b"a", b"bb", b"c") == [[b"a", b"bb", b"c"]]
    assert all_messages() == []


def test_a_message_has_so_many_items() -> None:
    assert all_messages(b"a", b"b", b"c", most=2) == [[b"a", b"b"], [b"c"]]


def test_a_message_has_so_many_bytes_unless_one_item_has_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MESSAGE_BYTES", 4)
    assert all_messages(b"aa", b"bb", b"c", b"ddddd", b"e") == [
        [b"aa", b"bb"],
        [b"c"],
        [b"ddddd"],
        [b"e"],
    ]


class Items(queue.SimpleQueue[bytes | None]):
    """Calls `on_wait` once when something waits for an item, and has none."""

    on_wait: Callable[[], None] | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> bytes | None:
        on_wait, self.on_wait = self.on_wait, None
        if on_wait is not None:
            on_wait()
        return super().get(block, timeout)


def waiting(patience_s: float, on_wait: Callable[[SendQueue[bytes]], None]) -> SendQueue[bytes]:
    """Returns an empty queue; something is put once its reader waits."""
    made: SendQueue[bytes] = SendQueue(9, len, patience_s=patience_s)
    items = made._items = Items()
    items.on_wait = lambda: on_wait(made)
    return made


def test_patient_items_wait_for_the_next_one_that_is_not() -> None:
    def put(sending: SendQueue[bytes]) -> None:
        sending.put_patiently(b"a")
        threading.Timer(0, put_the_rest, [sending]).start()

    def put_the_rest(sending: SendQueue[bytes]) -> None:
        sending.put_patiently(b"b")
        sending.put(b"c")
        sending.end()

    assert list(waiting(DEADLINE_S, put).messages()) == [[b"a", b"b", b"c"]]


def test_patient_items_do_not_wait_longer_than_the_patience() -> None:
    sending = waiting(0.001, lambda sending: sending.put_patiently(b"a"))
    messages = sending.messages()
    assert next(messages) == [b"a"]
    sending.put_patiently(b"b")
    sending.end()
    assert list(messages) == [[b"b"]]


def test_a_message_does_not_wait_for_more_items() -> None:
    sending = queue_of(b"a")
    messages = sending.messages()
    assert next(messages) == [b"a"]
    sending.put(b"b")
    sending.end()
    assert list(messages) == [[b"b"]]


def test_items_pass_bytes_and_arrays_take_turns() -> None:
    sending = queue_of()
    sending.put_behind(1, data(b"1a", b"1b", b"1c"), b"first")
    sending.put_behind(2, data(b"2a"), b"second")
    sending.put(b"x")
    messages = sending.messages()
    assert next(messages) == [b"x"]
    assert next(messages) == Chunk(1, memoryview(b"1a"))
    sending.put(b"y")
    sending.put(b"z")
    assert next(messages) == [b"y", b"z"]
    assert [next(messages) for _ in range(5)] == [
        Chunk(2, memoryview(b"2a")),
        Chunk(1, memoryview(b"1b")),
        [b"second"],
        Chunk(1, memoryview(b"1c")),
        [b"first"],
    ]
    sending.put_behind(3, data(b"3a"), b"third")
    sending.end()
    assert list(messages) == []


def test_what_comes_next_is_taken_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MESSAGE_BYTES", 4)
    sending = queue_of()
    assert sending.next_message() is None
    sending.put_behind(1, data(b"1a"), b"first")
    assert sending.next_message() == Chunk(1, memoryview(b"1a"))
    for item in (b"aa", b"bbb", b"c"):
        sending.put(item)
    found = [sending.next_message() for _ in range(4)]
    assert found == [[b"aa"], [b"bbb", b"c"], [b"first"], None]
    sending.put(b"d")
    assert sending.next_message() == [b"d"]
    sending.end()
    sending.put(b"e")
    assert [sending.next_message() for _ in range(2)] == [None, None]


def test_a_queue_that_is_closed_while_it_is_read_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MESSAGE_BYTES", 4)
    made: list[SendQueue[bytes]] = []

    def size_of(item: bytes) -> int:
        if item == b"last":
            made[0].close()
        return len(item)

    made.append(SendQueue(9, size_of))
    for item in (b"aa", b"last", b"bb"):
        made[0].put(item)
    assert made[0].next_message() == [b"aa"]
    assert made[0].next_message() is None
    assert list(made[0].messages()) == []

    def bytes_of() -> Iterator[memoryview]:
        yield memoryview(b"1a")
        made[1].close()
        yield memoryview(b"1b")

    made.append(SendQueue(9, len))
    made[1].put_behind(1, bytes_of(), b"first")
    assert made[1].next_message() == Chunk(1, memoryview(b"1a"))
    made[1].next_message()
    assert not made[1]._sending


def test_a_closed_queue_keeps_nothing() -> None:
    sending = queue_of(b"a")
    messages = sending.messages()
    assert next(messages) == [b"a"]
    kept = [memoryview(b"1a")]
    sending.put(b"b")
    sending.put_behind(1, iter(kept), b"first")
    sending.close()
    sending.put(b"c")
    sending.put_behind(2, iter(kept), b"second")
    assert list(messages) == []
    assert sending._items.empty()
    assert not sending._sending
