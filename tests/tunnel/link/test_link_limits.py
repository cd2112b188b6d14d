"""What an end of a link holds in memory, without I/O."""

from __future__ import annotations

import pytest

from shared_pathways_service.tunnel.link.control_frames import sync_frame
from shared_pathways_service.tunnel.link.link_events import Protocol
from shared_pathways_service.tunnel.link.link_frames import (
    MAX_PAYLOAD_BYTES,
    FrameKind,
    LinkViolation,
    frame_header,
)
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.link_streams import MAX_PIECES
from shared_pathways_service.tunnel.link.windows import (
    BUDGET_BYTES,
    MAX_CONNECTIONS,
    SHARE_BYTES,
    WINDOW_BYTES,
)
from tests.tunnel.link.two_ends import FAR, NEAR, Ends


def test_a_closed_connection_is_learned_of_behind_one_that_never_came() -> None:
    ends = Ends()
    near, far = ends.links
    ends.attach()
    opened = near.open(Protocol.BYTES)
    assert opened == 1
    ends.settle()
    ends.cut(1)
    # The second one is given up before the far end learns of it.
    second = near.open(Protocol.BYTES)
    assert second is not None
    near.reset(second, "the local connection broke")
    third = near.open(Protocol.BYTES)
    assert third is not None
    ends.attach()
    ends.settle()
    assert ends.opened == [1, third]
    # What says that the third is closed is lost with its carrier.
    far.reset(third, "the proxy has closed it")
    ends.take(FAR, 2)
    ends.cut(2)
    ends.attach()
    ends.settle()
    assert (NEAR, third) in ends.resets
    assert near.connections == far.connections == (1,)


def test_a_peer_that_asks_and_never_reads_does_not_fill_memory() -> None:
    far = Link(is_near=False)
    far.attach(1)
    far.take(1, 0.0, 0)
    pings = b"".join(frame_header(FrameKind.PING, 0, number, 0) for number in range(10_000))
    far.receive(1, memoryview(pings), 0.0)
    frames = far.take(1, 0.0, 0)
    assert frames == [frame_header(FrameKind.PONG, 0, 9_999, 0)]
    # All connections are known to be closed.
    sync = sync_frame(1_000_000, [], WINDOW_BYTES)
    far.receive(1, memoryview(sync), 0.0)
    ends = b"".join(frame_header(FrameKind.END, number, 1, 0) for number in range(1, 10_000))
    with pytest.raises(LinkViolation, match="does not read"):
        far.receive(1, memoryview(ends), 0.0)


def test_numbers_of_connections_must_be_plausible() -> None:
    far = Link(is_near=False)
    far.attach(1)
    with pytest.raises(LinkViolation, match="never opened"):
        far.receive(1, memoryview(frame_header(FrameKind.OPEN, 1 << 31, 0, 1) + b"b"), 0.0)


def test_many_small_pieces_count_as_well_as_their_bytes() -> None:
    near = Link(is_near=True)
    number = near.open(Protocol.BYTES)
    assert number is not None
    while near.room(number):
        near.send(number, b"x", is_whole=True)
    assert near.replay_bytes <= MAX_PIECES


def test_a_peer_that_cuts_its_bytes_too_small_is_refused() -> None:
    far = Link(is_near=False)
    far.attach(1)
    # (All but the first, so that they have to be kept.)
    pieces = (frame_header(FrameKind.WHOLE, 1, n, 1) + b"x" for n in range(1, 3 * MAX_PIECES))
    with pytest.raises(LinkViolation, match="too many pieces"):
        far.receive(1, memoryview(b"".join(pieces)), 0.0)


def test_all_connections_together_keep_a_budget_and_each_has_its_share() -> None:
    near = Link(is_near=True)
    numbers = [near.open(Protocol.BYTES) for _ in range(MAX_CONNECTIONS)]
    assert near.open(Protocol.BYTES) is None
    piece = bytes(MAX_PAYLOAD_BYTES)
    for number in numbers:
        assert number is not None
        assert near.room(number) >= SHARE_BYTES - 1
        while room := near.room(number):
            near.send(number, piece[:room], is_whole=True)
    most = BUDGET_BYTES + MAX_PAYLOAD_BYTES + MAX_CONNECTIONS * SHARE_BYTES
    assert BUDGET_BYTES <= near.replay_bytes <= most
    # What one connection gives back, another may use.
    for number in numbers[:8]:
        assert number is not None
        near.reset(number, "the local connection broke")
    assert near.replay_bytes < BUDGET_BYTES
    last = numbers[-1]
    assert last is not None
    assert near.room(last) == WINDOW_BYTES - SHARE_BYTES


def test_bytes_that_are_not_passed_on_are_counted() -> None:
    ends = Ends()
    near, far = ends.links
    carrier = ends.attach()
    number = near.open(Protocol.BYTES)
    assert number is not None
    ends.send(NEAR, number, b"whole")
    ends.send(NEAR, number, b"part", is_whole=False)
    ends.take(NEAR, carrier)
    ends.move(NEAR, carrier)
    assert far.held_bytes == 9
    ends.deliver(FAR, number)
    assert far.held_bytes == 4
    ends.send(NEAR, number, b"rest")
    ends.settle()
    assert far.held_bytes == near.replay_bytes == 0
