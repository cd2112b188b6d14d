"""The ends of JAX's connections: one upload fails alone before anything else does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.link.http2_frames import END_STREAM, FrameType, encode_frame
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.ifrt_messages import (
    LOOKUP_PATH,
    SESSION_PATH,
    VERSION_PATH,
    encode_lookup,
)
from shared_pathways_service.tunnel.link.near_uploads import UploadEnds, UploadWatch
from tests.tunnel.link.early_frames import HANDLE, SESSION, data, headers, parts
from tests.tunnel.link.rigs import DEADLINE_S, run

STORE_PATH = b"/xla.ifrt.proxy.GrpcIfrtService/HostBufferStore"
SESSION_STREAM = 3
#: As JAX's client begins it: which versions there are, then a session.
SESSION_BEGIN = (
    PREFACE
    + headers(1, VERSION_PATH)
    + data(1, b"versions", END_STREAM)
    + headers(SESSION_STREAM, SESSION_PATH)
    + data(SESSION_STREAM, b"init")
)
DISCONNECT = encode_frame(FrameType.RST_STREAM, 0, SESSION_STREAM, (8).to_bytes(4, "big"))


def upload(stream: int, *, path: bytes = STORE_PATH, is_sent: bool = True) -> bytes:
    end = encode_frame(FrameType.DATA, END_STREAM, stream) if is_sent else b""
    return headers(stream, path) + data(stream, b"numbers") + end


def lookup(stream: int) -> bytes:
    return headers(stream, LOOKUP_PATH) + data(stream, encode_lookup(SESSION, HANDLE), END_STREAM)


def answer(stream: int) -> bytes:
    return encode_frame(FrameType.HEADERS, 0x4 | END_STREAM, stream, b"\x88")


class Jax:
    """JAX's side of one connection, and the connection's other side before it was taken over."""

    def __init__(self, ends: UploadEnds) -> None:
        self.socket, self.other = socket.socketpair()
        self.socket.setblocking(False)
        self.other.setblocking(False)
        self.watch = ends.watch(self.other)

    def begin(self, sent: bytes, written: bytes = b"") -> None:
        """Lets bytes pass before the other end is gone."""
        self.watch.sent(memoryview(sent))
        self.watch.written(memoryview(written))

    def end(self) -> None:
        self.watch.take_over(self.other)

    def close(self) -> None:
        self.socket.close()
        self.other.close()

    async def read(self) -> bytes:
        """Returns the next bytes; none: the connection is closed."""
        return await asyncio.get_running_loop().sock_recv(self.socket, 4096)

    async def reset(self) -> int:
        """Returns the stream that is reset next."""
        [frame] = parts(await self.read())
        assert frame.type == FrameType.RST_STREAM
        return frame.stream

    def is_silent(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return self.socket.recv(1, socket.MSG_PEEK) is None
        return True


@contextlib.asynccontextmanager
async def a_client(disconnect_s: float) -> AsyncIterator[tuple[UploadEnds, Jax, Jax]]:
    """The connections of a client with a session: the session's, and the one of its buffers."""
    ends = UploadEnds(Timeout(disconnect_s))
    session, buffers = Jax(ends), Jax(ends)
    session.begin(SESSION_BEGIN)
    try:
        yield ends, session, buffers
    finally:
        await ends.close()
        session.close()
        buffers.close()


def with_client(
    test: Callable[[UploadEnds, Jax, Jax], Awaitable[None]], *, disconnect_s: float = DEADLINE_S
) -> None:
    async def with_one() -> None:
        async with a_client(disconnect_s) as (ends, session, buffers):
            await test(ends, session, buffers)

    run(with_one)


@pytest.mark.parametrize("session_first", [True, False])
def test_others_fail_when_jax_has_disconnected(session_first: bool) -> None:
    async def test(_ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        buffers.begin(PREFACE + upload(1) + upload(3) + upload(5, is_sent=False))
        for each in (session, buffers) if session_first else (buffers, session):
            each.end()
        assert await buffers.reset() == 1
        assert session.is_silent()
        assert buffers.is_silent()
        session.socket.send(DISCONNECT)
        assert await session.read() == b""
        assert await buffers.read() == b""

    with_client(test)


def test_a_connection_alone_that_breaks() -> None:
    async def test(_ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        buffers.begin(PREFACE + upload(1))
        buffers.end()
        assert await buffers.reset() == 1
        session.begin(DISCONNECT)
        assert await buffers.read() == b""

    with_client(test)


def test_a_session_without_uploads_ends_at_once_and_a_later_upload_alone() -> None:
    async def test(_ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        buffers.begin(PREFACE + upload(1) + lookup(3), answer(1))
        session.end()
        buffers.end()
        assert await session.read() == b""
        # A download has no deadline: it is not left waiting.
        assert await buffers.reset() == 3
        assert buffers.is_silent()
        # (Its path has an index now.)
        buffers.socket.send(upload(5, path=b"") + upload(7, path=b""))
        assert await buffers.reset() == 5
        assert await buffers.read() == b""

    with_client(test)


@pytest.mark.parametrize("has_upload", [False, True])
def test_one_connection_for_everything_ends(*, has_upload: bool) -> None:
    async def test(_ends: UploadEnds, _session: Jax, both: Jax) -> None:
        both.begin(SESSION_BEGIN + upload(5), answer(1) + answer(5))
        if has_upload:
            both.begin(upload(7))
        both.end()
        if has_upload:
            assert await both.reset() == 7
            both.socket.send(DISCONNECT)
        assert await both.read() == b""

    with_client(test)


def test_downloads_fail_at_once_on_a_connection_that_stays_open() -> None:
    async def test(_ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        # The first has its answer, the second a part of it.
        buffers.begin(PREFACE + lookup(1) + lookup(3) + lookup(5), answer(1) + data(3, b"numbers"))
        buffers.end()
        frames = parts(await buffers.read())
        assert [(frame.type, frame.stream) for frame in frames] == [
            (FrameType.RST_STREAM, 3),
            (FrameType.RST_STREAM, 5),
        ]
        buffers.socket.send(lookup(7))
        assert await buffers.reset() == 7
        assert buffers.is_silent()
        assert session.is_silent()

    with_client(test)


def test_the_end_of_all_does_not_wait_for_later_uploads() -> None:
    async def test(ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        buffers.begin(PREFACE + upload(1), answer(1))
        session.end()
        buffers.end()
        await ends.close()
        assert await session.read() == b""
        assert await buffers.read() == b""

    with_client(test)


def test_the_end_of_all_waits_for_an_upload() -> None:
    async def test(ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        buffers.begin(PREFACE + upload(1) + upload(3))
        session.end()
        buffers.end()
        closing = asyncio.ensure_future(ends.close())
        assert await buffers.reset() == 1
        assert not closing.done()
        session.socket.send(DISCONNECT)
        await closing
        assert await buffers.read() == b""

    with_client(test)


def test_a_client_that_hangs_up_is_not_waited_for() -> None:
    async def test(ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        buffers.begin(PREFACE + upload(1))
        session.end()
        buffers.end()
        buffers.socket.close()
        session.socket.close()
        await ends.close()
        assert session.other.fileno() == buffers.other.fileno() == -1

    with_client(test)


def test_a_client_that_does_not_disconnect_is_waited_for_a_while() -> None:
    async def test(_ends: UploadEnds, session: Jax, buffers: Jax) -> None:
        buffers.begin(PREFACE + upload(1))
        session.end()
        buffers.end()
        assert await buffers.reset() == 1
        assert await session.read() == b""
        assert await buffers.read() == b""

    with_client(test, disconnect_s=0.2)


@pytest.mark.parametrize(
    ("sent", "written"),
    [
        # Another program than JAX's client; a server that speaks first; a cut within a frame.
        (PREFACE + headers(1, b"/a.Service/Call"), b""),
        (b"GET / HTTP/1.1", b"hello"),
        (b"", b"hello" * 1000),
        (PREFACE + upload(1), answer(3)[:5]),
    ],
)
def test_other_connections_are_closed_at_once(sent: bytes, written: bytes) -> None:
    async def test(_ends: UploadEnds, _session: Jax, buffers: Jax) -> None:
        buffers.begin(sent, written)
        buffers.end()
        assert buffers.other.fileno() == -1
        # (Of what it was sent nothing is in the way.)
        assert await buffers.read() == b""

    with_client(test)


def test_settings_of_a_server_may_come_before_the_first_byte_of_its_client() -> None:
    async def test(ends: UploadEnds, session: Jax, _buffers: Jax) -> None:
        jax = Jax(ends)
        jax.watch.written(memoryview(encode_frame(FrameType.SETTINGS, 0, 0, b"\0\1\0\0\0\0"))[:11])
        jax.begin(PREFACE + upload(1))
        was_cut = not jax.watch.can_reset
        jax.watch.written(memoryview(b"\0\0\0\0"))
        assert was_cut
        assert jax.watch.can_reset
        jax.end()
        assert await jax.reset() == 1
        session.begin(DISCONNECT)
        await ends.close()
        jax.close()

    with_client(test)


class _Nothing:
    def disconnected(self, watch: UploadWatch) -> None:
        raise AssertionError(watch)

    def take_over(self, watch: UploadWatch, local: socket.socket) -> None:
        raise AssertionError(watch, local)


def test_what_is_an_upload() -> None:
    def open_after(sent: bytes, written: bytes = b"") -> bool:
        watch = UploadWatch(_Nothing(), 0)
        for byte in PREFACE + sent:
            watch.from_jax.cut(memoryview(bytes((byte,))))
        watch.to_jax.cut(memoryview(written))
        return watch.has_uploads

    assert open_after(upload(1))
    assert open_after(upload(1, is_sent=False))
    assert open_after(lookup(1) + upload(3), answer(1))
    assert not open_after(lookup(1))
    assert not open_after(upload(1), answer(1))
    assert not open_after(upload(1) + encode_frame(FrameType.RST_STREAM, 0, 1, bytes(4)))
    assert not open_after(upload(1), encode_frame(FrameType.RST_STREAM, 0, 1, bytes(4)))
    assert not open_after(upload(1, path=b"/a.Service/Call"))
