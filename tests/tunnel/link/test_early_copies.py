"""What the far end sends ahead, and when it has looked it up."""

from __future__ import annotations

from collections.abc import Callable

from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.tunnel.link.early_answers import (
    ASK,
    LARGEST_BYTES,
    decode_early,
    encode_early,
)
from shared_pathways_service.tunnel.link.early_copies import EarlyCopies
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.ifrt_messages import SESSION_PATH
from tests.tunnel.link.early_frames import HANDLE, SESSION, data, headers, parts

OnFound = Callable[[bytes | None], None]


class Proxy:
    """Looks buffers up when the test wants it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, OnFound]] = []
        self.copies = EarlyCopies(lambda *lookup: self.asked.append(lookup))
        self.late = b""
        self.copies.on_ready = self._on_ready

    def begin(self) -> None:
        self.request(PREFACE + ASK + headers(1, SESSION_PATH))
        answer = proxy_pb2.IfrtResponse()
        answer.init_response.session_id = SESSION
        self.answer(data(1, answer.SerializeToString()))

    def request(self, raw: bytes) -> bytes:
        return b"".join(self.copies.from_peer([raw]))

    def answer(self, raw: bytes) -> bytes:
        return b"".join(self.copies.from_local(raw))

    def is_full(self) -> bool:
        return self.copies.is_full

    def _on_ready(self) -> None:
        self.late += b"".join(self.copies.ready())


def copy(op_id: int, handle: int) -> bytes:
    request = proxy_pb2.IfrtRequest()
    request.request_metadata.op_id = op_id
    request.copy_to_host_buffer_request.host_buffer_handle = handle
    return data(1, request.SerializeToString())


def copied(op_id: int) -> bytes:
    answer = proxy_pb2.IfrtResponse()
    answer.response_metadata.op_id = op_id
    answer.copy_to_host_buffer_response.SetInParent()
    return data(1, answer.SerializeToString())


def test_a_buffer_is_sent_before_its_answer() -> None:
    proxy = Proxy()
    proxy.begin()
    assert proxy.request(copy(5, HANDLE)) == copy(5, HANDLE)
    assert proxy.answer(copied(5) + data(1, b"later")) == b""
    [(session, handle, on_found)] = proxy.asked
    assert (session, handle) == (SESSION, HANDLE)
    on_found(b"value")
    assert proxy.late == encode_early(SESSION, HANDLE, b"value") + copied(5) + data(1, b"later")
    assert decode_early(parts(proxy.late)[0].payload) == ((SESSION, HANDLE), b"value")


def test_answers_stay_in_order_however_lookups_end() -> None:
    proxy = Proxy()
    proxy.begin()
    proxy.request(copy(5, 50) + copy(6, 60) + copy(7, 70))
    assert proxy.answer(copied(5) + copied(6) + copied(7)) == b""
    found = {handle: on_found for _, handle, on_found in proxy.asked}
    found[60](b"six")
    assert proxy.late == b""
    found[50](None)
    six = encode_early(SESSION, 60, b"six") + copied(6)
    assert proxy.late == copied(5) + six
    found[70](b"x" * (LARGEST_BYTES + 1))
    assert proxy.late == copied(5) + six + copied(7)


def test_lookups_that_end_at_once_keep_the_order() -> None:
    proxy = Proxy()
    proxy.copies = EarlyCopies(lambda _session, _handle, on_found: on_found(b"at once"))
    proxy.copies.on_ready = proxy._on_ready
    proxy.begin()
    proxy.request(copy(5, HANDLE))
    early = encode_early(SESSION, HANDLE, b"at once")
    passed = proxy.answer(data(1, b"before") + copied(5) + data(1, b"later"))
    assert passed == data(1, b"before") + early + copied(5) + data(1, b"later")


def test_the_proxy_is_not_read_while_much_waits() -> None:
    proxy = Proxy()
    proxy.begin()
    proxy.request(copy(5, HANDLE))
    proxy.answer(copied(5))
    assert not proxy.is_full()
    for _ in range(40):
        proxy.answer(data(1, b"x" * 10_000))
    assert proxy.is_full()
    proxy.asked[0][2](None)
    assert not proxy.is_full()


def test_found_buffers_that_wait_for_others_count() -> None:
    proxy = Proxy()
    proxy.begin()
    for op_id in range(5, 9):
        proxy.request(copy(op_id, op_id))
        proxy.answer(copied(op_id))
    first, *others = (on_found for _, _, on_found in proxy.asked)
    for on_found in others:
        assert not proxy.is_full()
        on_found(b"x" * 100_000)
    assert proxy.is_full()
    first(None)
    assert not proxy.is_full()


def test_what_waits_is_sent_at_the_end() -> None:
    proxy = Proxy()
    proxy.begin()
    proxy.request(copy(5, HANDLE))
    proxy.answer(copied(5) + copied(6)[:4])
    assert b"".join(proxy.copies.finish()) == copied(5) + copied(6)[:4]
    # Too late.
    proxy.asked[0][2](b"value")
    assert proxy.late == b""


def test_nothing_is_looked_up_for_an_end_that_does_not_ask() -> None:
    proxy = Proxy()
    begin = PREFACE + headers(1, SESSION_PATH)
    assert proxy.answer(data(1, b"early")[:3]) == b""
    assert proxy.request(begin) == begin
    assert proxy.request(copy(5, HANDLE)) == copy(5, HANDLE)
    assert proxy.answer(data(1, b"early")[3:] + copied(5)) == data(1, b"early") + copied(5)
    assert not proxy.asked
