"""PINGs of HTTP/2 are found, answered late, and answered once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.tunnel.link.http2_pings import PREFACE, FrameCutter, PingKeeper


def frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


PING = frame(6, b"12345678")
ANSWER = frame(6, b"12345678", flags=1)
DATA = frame(0, b"some data", stream=5)

_frames = st.lists(
    st.one_of(
        st.binary(max_size=40).map(lambda payload: frame(0, payload, stream=1)),
        st.binary(min_size=8, max_size=8).map(lambda payload: frame(6, payload)),
        st.binary(min_size=8, max_size=8).map(lambda payload: frame(6, payload, flags=1)),
    ),
    min_size=1,
    max_size=12,
)


@given(
    frames=_frames,
    sizes=st.lists(st.integers(min_value=1, max_value=30)),
    has_preface=st.booleans(),
)
def test_cuts_and_pings_do_not_depend_on_the_portions(
    frames: list[bytes], sizes: list[int], has_preface: bool
) -> None:
    start = PREFACE if has_preface else b""
    data = start + b"".join(frames)
    ends = {len(start)} | {len(start) + len(b"".join(frames[: i + 1])) for i in range(len(frames))}
    cutter = FrameCutter(has_preface=has_preface)
    position, found = 0, set()
    for size in [*sizes, len(data)]:
        portion = data[position : position + size]
        if whole := cutter.cut(memoryview(portion)):
            found.add(position + whole)
            assert not any(position + whole < end <= position + len(portion) for end in ends)
        position += len(portion)
    assert found <= ends
    assert max(found) == len(data)
    assert cutter.pings == [each[9:] for each in frames if each[3] == 6 and not each[4]]


def test_a_ping_is_answered_only_when_the_peer_does_not() -> None:
    pings = PingKeeper()
    pings.asked(b"12345678", 0.0)
    assert pings.due_at == 15.0
    assert pings.arrived([DATA + ANSWER]) == [DATA + ANSWER]
    assert pings.answers(100.0) == []
    assert (pings.due_at or 0.0) == 0.0


def test_an_answer_that_comes_after_ours_is_dropped() -> None:
    pings = PingKeeper()
    pings.asked(b"12345678", 0.0)
    assert pings.answers(14.9) == []
    assert pings.answers(15.0) == [ANSWER]
    assert pings.answers(16.0) == []
    # Whole frames may come in several pieces.
    assert b"".join(pings.arrived([DATA + ANSWER[:5], ANSWER[5:] + DATA])) == DATA + DATA
    assert pings.arrived([ANSWER]) == [ANSWER]


def test_pings_of_the_other_side_pass() -> None:
    pings = PingKeeper()
    pings.asked(b"87654321", 0.0)
    assert b"".join(pings.arrived([PING, ANSWER])) == PING + ANSWER


def test_pings_that_are_never_answered_are_forgotten() -> None:
    keeper = PingKeeper()
    for number in range(5000):
        keeper.asked(number.to_bytes(8), 0.0)
    assert len(keeper.answers(100.0)) == 1024
