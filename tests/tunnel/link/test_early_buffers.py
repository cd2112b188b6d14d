"""Small host buffers reach JAX ahead of their lookup, and nothing else changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.tunnel.link.early_answers import (
    ASK,
    LARGEST_BYTES,
    EarlyAnswers,
    EarlyBuffers,
    encode_early,
)
from shared_pathways_service.tunnel.link.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    NO_HEADER_TABLE,
    FrameType,
    MessageReader,
    encode_frame,
    encode_message,
)
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.ifrt_messages import (
    LOOKUP_PATH,
    SESSION_PATH,
    encode_lookup,
    lookup_data,
)
from tests.tunnel.link.early_frames import HANDLE, SESSION, data, headers, parts

MIB = 1 << 20


def grow(size: int, stream: int = 0) -> bytes:
    return encode_frame(FrameType.WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def lookup(stream: int, handle: int = HANDLE) -> bytes:
    request = data(stream, encode_lookup(SESSION, handle), END_STREAM)
    return headers(stream, LOOKUP_PATH) + request


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
