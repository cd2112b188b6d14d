"""Small host buffers reach JAX ahead of their lookup, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.tunnel.link.early_answers import (
    ASK,
    LARGEST_BYTES,
    EarlyAnswers,
    EarlyBuffers,
    decode_early,
    encode_early,
)
from shared_pathways_service.tunnel.link.early_copies import EarlyCopies
from shared_pathways_service.tunnel.link.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    NO_HEADER_TABLE,
    FrameReader,
    FrameType,
    MessageReader,
    Part,
    encode_frame,
    encode_message,
    literal,
)
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.ifrt_messages import (
    LOOKUP_PATH,
    SESSION_PATH,
    encode_lookup,
    lookup_data,
)

SESSION, HANDLE = 77, 1234
MIB = 1 << 20
OnFound = Callable[[bytes | None], None]


def headers(stream: int, path: bytes) -> bytes:
    return encode_frame(FrameType.HEADERS, END_HEADERS, stream, literal(4, path))


def grow(size: int, stream: int = 0) -> bytes:
    return encode_frame(FrameType.WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def data(stream: int, message: bytes, flags: int = 0) -> bytes:
    return encode_frame(FrameType.DATA, flags, stream, encode_message(message))


def lookup(stream: int, handle: int = HANDLE) -> bytes:
    request = data(stream, encode_lookup(SESSION, handle), END_STREAM)
    return headers(stream, LOOKUP_PATH) + request


def parts(raw: bytes) -> list[Part]:
    return list(FrameReader(has_preface=False).read(raw))


def sent(answers: EarlyAnswers, raw: bytes) -> bytes:
    return b"".join(answers.from_local(raw))


def ready_answers(size: int = 100) -> EarlyAnswers:
    """A connection with a large window, and one buffer of this size."""
    buffers = EarlyBuffers()
    buffers.put((SESSION, HANDLE), b"v" * size)
    answers = EarlyAnswers(buffers)
    sent(answers, PREFACE + encode_frame(FrameType.SETTINGS, 0, 0, b"\0\4" + b"\0\x40\0\0"))
    sent(answers, grow(4 * MIB))
    return answers


def replied(answers: EarlyAnswers) -> bytes:
    messages = MessageReader(2 * LARGEST_BYTES)
    found = parts(b"".join(answers.replies))
    payloads = [each.payload for each in found if each.type == FrameType.DATA]
    [message] = [message for payload in payloads for message in messages.read(payload)]
    return lookup_data(message)


# ---- the near end


def test_a_lookup_whose_buffer_is_here_is_answered() -> None:
    for size in (0, 4, 20_000, LARGEST_BYTES):
        answers = ready_answers(size)
        assert sent(answers, lookup(1)) == b""
        assert replied(answers) == b"v" * size
        first, *_, last, window = parts(b"".join(answers.replies))
        assert (first.type, first.flags) == (FrameType.HEADERS, END_HEADERS)
        assert (last.type, last.flags) == (FrameType.HEADERS, END_HEADERS | END_STREAM)
        # JAX gets back the window of its request.
        request = len(encode_message(encode_lookup(SESSION, HANDLE)))
        assert int.from_bytes(window.payload, "big") == request


def test_frames_after_an_answer_do_not_reach_the_proxy() -> None:
    answers = ready_answers()
    sent(answers, lookup(1))
    cancel = encode_frame(FrameType.RST_STREAM, 0, 1, b"\0\0\0\x08")
    assert sent(answers, grow(5, stream=1) + cancel) == b""
    assert sent(answers, grow(5, stream=3)) == grow(5, stream=3)


def test_a_lookup_passes_unchanged_without_its_buffer() -> None:
    answers = ready_answers()
    assert sent(answers, lookup(1, handle=5)) == lookup(1, handle=5)
    assert sent(answers, lookup(3)) == b""
    # Once.
    assert sent(answers, lookup(5)) == lookup(5)


def test_a_lookup_passes_unchanged_without_a_window() -> None:
    buffers = EarlyBuffers()
    buffers.put((SESSION, HANDLE), b"v" * 10)
    answers = EarlyAnswers(buffers)
    sent(answers, PREFACE)
    assert sent(answers, lookup(1)) == lookup(1)
    sent(answers, grow(4 * MIB))
    # Of the connection there is one now, but not of a stream.
    buffers.put((SESSION, HANDLE), b"v" * 70_000)
    assert sent(answers, lookup(3)) == lookup(3)
    assert not answers.replies


def test_streams_begin_in_order() -> None:
    answers = ready_answers()
    first, second = headers(1, LOOKUP_PATH), headers(3, b"/another")
    request = data(1, encode_lookup(SESSION, HANDLE), END_STREAM)
    assert sent(answers, first) == b""
    assert sent(answers, second) == first + second
    assert sent(answers, request) == request
    assert sent(answers, headers(5, LOOKUP_PATH)) == b""
    cancel = encode_frame(FrameType.RST_STREAM, 0, 5, b"\0\0\0\x08")
    assert sent(answers, cancel) == headers(5, LOOKUP_PATH) + cancel


def test_what_is_kept_is_sent_at_the_end() -> None:
    answers = ready_answers()
    begun = headers(3, b"/another")[:7]
    assert sent(answers, headers(1, LOOKUP_PATH) + begun) == b""
    assert b"".join(answers.finish()) == headers(1, LOOKUP_PATH) + begun


def test_only_a_session_asks_for_buffers() -> None:
    session, other = EarlyAnswers(EarlyBuffers()), EarlyAnswers(EarlyBuffers())
    assert sent(session, PREFACE + headers(1, SESSION_PATH)) == (
        PREFACE + ASK + headers(1, SESSION_PATH)
    )
    assert sent(session, headers(3, SESSION_PATH)) == headers(3, SESSION_PATH)
    uploads = PREFACE + headers(1, b"/xla.ifrt.proxy.GrpcIfrtService/HostBufferStore")
    assert sent(other, uploads) == uploads


def test_long_headers_pass_unchanged() -> None:
    for path in (SESSION_PATH, LOOKUP_PATH):
        answers = ready_answers()
        fields = b"x" * 20_000 + path + b"x" * 20_000
        long = encode_frame(FrameType.HEADERS, END_HEADERS, 1, fields)
        assert b"".join(sent(answers, long[i : i + 999]) for i in range(0, 50_000, 999)) == long


def test_jax_gets_no_header_table_and_no_early_frames() -> None:
    answers = EarlyAnswers(buffers := EarlyBuffers())
    settings = encode_frame(FrameType.SETTINGS, 0, 0, b"\0\4\0\x40\0\0")
    ack = encode_frame(FrameType.SETTINGS, ACK, 0)
    early = encode_early(SESSION, HANDLE, b"v" * LARGEST_BYTES)
    passed = b"".join(answers.from_peer([settings, early + ack, data(1, b"x")]))
    [first, *rest] = parts(passed)
    assert bytes(first.payload) == b"\0\4\0\x40\0\0" + NO_HEADER_TABLE
    assert b"".join(bytes(part.raw) for part in rest) == ack + data(1, b"x")
    assert buffers.find((SESSION, HANDLE)) == b"v" * LARGEST_BYTES


def test_kept_buffers_are_bounded() -> None:
    buffers = EarlyBuffers(limit_bytes=1000)
    for handle in range(50):
        buffers.put((SESSION, handle), b"x" * 100)
        assert buffers.kept_bytes <= 1000
    assert buffers.find((SESSION, 39)) is None
    assert buffers.find((SESSION, 40)) is not None
    for handle in range(50):
        buffers.drop((SESSION, handle))
    assert buffers.kept_bytes == 0


#: What happens on a connection: JAX's window grows, the proxy sends, JAX looks a buffer up.
STEPS = st.lists(
    st.tuples(st.sampled_from(["grow", "send", "lookup"]), st.integers(1, MIB)), max_size=60
)


@given(STEPS)
def test_together_with_the_proxy_no_window_is_exceeded(steps: list[tuple[str, int]]) -> None:
    buffers = EarlyBuffers()
    answers = EarlyAnswers(buffers)
    sent(answers, PREFACE + encode_frame(FrameType.SETTINGS, 0, 0, b"\0\4" + b"\0\x40\0\0"))
    of_jax = of_proxy = 65535
    for stream, (what, size) in enumerate(steps):
        if what == "grow":
            [update] = parts(sent(answers, grow(size)))
            increment = int.from_bytes(update.payload, "big")
            assert increment > 0
            of_jax, of_proxy = of_jax + size, of_proxy + increment
        elif what == "send":
            taken = max(0, min(size, of_proxy))
            answers.from_peer([encode_frame(FrameType.DATA, 0, 1, b"x" * taken)])
            of_jax, of_proxy = of_jax - taken, of_proxy - taken
        else:
            buffers.put((SESSION, HANDLE), b"v" * (size % LARGEST_BYTES))
            sent(answers, lookup(2 * stream + 3))
            replies = parts(b"".join(answers.replies))
            answers.replies.clear()
            of_jax -= sum(len(each.payload) for each in replies if each.type == FrameType.DATA)
        # Even if the proxy uses its whole window now. And it is left enough to go on.
        assert of_proxy <= of_jax
        assert of_jax >= 0
        if what == "grow":
            assert of_proxy >= min(of_jax, 512 << 10)


# ---- the far end


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
