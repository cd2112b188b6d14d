"""The two ends of a link: every byte once and in order, whatever happens to the carriers."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from shared_pathways_service.tunnel.link.link_events import (
    Protocol,
)
from shared_pathways_service.tunnel.link.link_frames import FrameKind, LinkViolation, frame_header
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.windows import MAX_CONNECTIONS
from tests.tunnel.link.two_ends import FAR, NEAR, WINDOW, Ends

ENDS = st.sampled_from((NEAR, FAR))
SIZES = st.integers(min_value=1, max_value=5000)
#: What an end accepts of a connection.
LARGEST = 4 * WINDOW


class AnyCarriers(RuleBasedStateMachine):
    """Sends on several connections while carriers come, break, and lose what is on them."""

    connections = Bundle("connections")
    carriers = Bundle("carriers")

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends()
        self.ended_by: set[tuple[int, int]] = set()

    @rule(target=carriers)
    def attach(self) -> int:
        return self.ends.attach()

    @rule(carrier=consumes(carriers))
    def cut(self, carrier: int) -> None:
        self.ends.cut(carrier)

    @rule(target=connections, protocol=st.sampled_from(Protocol))
    def open(self, protocol: Protocol) -> object:
        number = self.ends.links[NEAR].open(protocol)
        return multiple() if number is None else number

    @rule(
        connection=connections,
        end=ENDS,
        data=st.binary(min_size=1, max_size=3000),
        is_whole=st.booleans(),
    )
    def send(self, connection: int, end: int, data: bytes, is_whole: bool) -> None:
        if (end, connection) in self.ended_by or (
            end == FAR and connection not in self.ends.opened
        ):
            return
        data = data[: self.ends.links[end].room(connection)]
        if data:
            self.ends.send(end, connection, data, is_whole=is_whole)

    @rule(connection=connections, end=ENDS)
    def end(self, connection: int, end: int) -> None:
        if (end, connection) in self.ended_by or (
            end == FAR and connection not in self.ends.opened
        ):
            return
        self.finish(connection, end)

    def may_send(self, connection: int, end: int) -> bool:
        is_open = end == NEAR or connection in self.ends.opened
        return is_open and (end, connection) not in self.ended_by

    def finish(self, connection: int, end: int) -> None:
        # A stream ends with a message.
        if self.ends.links[end].room(connection):
            self.ends.send(end, connection, b"!")
        self.ends.links[end].end(connection)
        self.ended_by.add((end, connection))

    @rule(
        carrier=carriers,
        end=ENDS,
        limit=st.integers(min_value=0, max_value=5000),
    )
    def take(self, carrier: int, end: int, limit: int) -> None:
        self.ends.take(end, carrier, limit)

    @rule(
        carrier=carriers,
        end=ENDS,
        size=st.integers(min_value=1, max_value=5000),
    )
    def move(self, carrier: int, end: int, size: int) -> None:
        self.ends.move(end, carrier, size)

    @rule(connection=connections, end=ENDS)
    def deliver(self, connection: int, end: int) -> None:
        if self.ends.undelivered[end, connection]:
            self.ends.deliver(end, connection)

    @rule(end=ENDS)
    def hurry(self, end: int) -> None:
        self.ends.links[end].hurry()

    @invariant()
    def nothing_is_invented(self) -> None:
        for (end, connection), data in self.ends.passed_on.items():
            assert self.ends.sent[1 - end, connection].startswith(data)
        assert not self.ends.resets
        for link in self.ends.links:
            assert link.replay_bytes <= len(link.connections) * (LARGEST + 2)

    def teardown(self) -> None:
        self.ends.attach()
        self.ends.settle()
        for connection in self.ends.opened:
            for end in (NEAR, FAR):
                if (end, connection) not in self.ended_by:
                    self.finish(connection, end)
        self.ends.settle()
        self.nothing_is_invented()
        for (end, connection), data in self.ends.sent.items():
            assert bytes(self.ends.passed_on[1 - end, connection]) == bytes(data)
            assert (1 - end, connection) in self.ends.ended
        assert len(set(self.ends.opened)) == len(self.ends.opened)
        assert [link.connections for link in self.ends.links] == [(), ()]
        assert [link.replay_bytes for link in self.ends.links] == [0, 0]


TestAnyCarriers = AnyCarriers.TestCase
TestAnyCarriers.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def one_connection() -> tuple[Ends, int, int]:
    ends = Ends()
    carrier = ends.attach()
    connection = ends.links[NEAR].open(Protocol.BYTES)
    assert connection is not None
    ends.settle()
    return ends, carrier, connection


def test_what_a_lost_carrier_took_is_sent_again_once() -> None:
    ends, carrier, connection = one_connection()
    ends.send(NEAR, connection, b"abc")
    ends.take(NEAR, carrier)
    ends.cut(carrier)
    second = ends.attach()
    ends.settle()
    assert ends.passed_on[FAR, connection] == b"abc"
    # It arrived, but its acknowledgement is lost: the SYNC on the next carrier says so.
    ends.send(NEAR, connection, b"def")
    ends.take(NEAR, second)
    ends.move(NEAR, second)
    ends.deliver(FAR, connection)
    ends.cut(second)
    third = ends.attach()
    ends.take(FAR, third)
    ends.move(FAR, third)
    ends.take(NEAR, third)
    assert b"def" not in ends.carriers[third][NEAR]
    assert ends.links[NEAR].replay_bytes == 0


def test_an_acknowledgement_that_a_carrier_took_with_it_goes_to_the_others() -> None:
    ends, first, connection = one_connection()
    second = ends.attach()
    ends.settle()
    ends.send(NEAR, connection, b"abc")
    ends.take(NEAR, first)
    ends.move(NEAR, first)
    ends.deliver(FAR, connection)
    ends.take(FAR, first)
    ends.cut(first)
    ends.take(FAR, second)
    ends.move(FAR, second)
    assert ends.links[NEAR].replay_bytes == 0


def test_small_messages_overtake_a_large_transfer() -> None:
    ends, first, large = one_connection()
    second = ends.attach()
    small = ends.links[NEAR].open(Protocol.BYTES)
    assert small is not None
    ends.settle()
    for _ in range(4):
        ends.send(NEAR, large, b"x" * (WINDOW // 4))
    ends.send(NEAR, small, b"small")
    ends.take(NEAR, first)
    ends.move(NEAR, first)
    assert bytes(ends.undelivered[FAR, small][0].payloads[0]) == b"small"
    assert not ends.undelivered[FAR, large]
    assert not ends.links[NEAR].has_frames(first)
    ends.take(NEAR, second)
    ends.settle()
    assert ends.passed_on[FAR, large] == b"x" * WINDOW


def test_a_large_transfer_uses_the_only_carrier() -> None:
    ends, first, large = one_connection()
    second = ends.attach()
    ends.settle()
    for _ in range(4):
        ends.send(NEAR, large, b"x" * (WINDOW // 4))
    assert not ends.links[NEAR].has_frames(first)
    ends.cut(second)
    assert ends.links[NEAR].has_frames(first)
    ends.settle()
    assert ends.passed_on[FAR, large] == b"x" * WINDOW


def test_an_acknowledgement_waits_for_the_answer_to_take_it_along() -> None:
    ends, carrier, connection = one_connection()
    ends.send(NEAR, connection, b"question")
    ends.take(NEAR, carrier)
    ends.move(NEAR, carrier)
    ends.deliver(FAR, connection)
    assert ends.links[FAR].is_ack_waiting
    assert not ends.links[FAR].has_frames(carrier)
    ends.send(FAR, connection, b"answer")
    ends.take(FAR, carrier)
    assert not ends.links[FAR].is_ack_waiting
    ends.move(FAR, carrier)
    assert ends.links[NEAR].replay_bytes == 0
    # Nothing takes the acknowledgement of the answer along.
    ends.deliver(NEAR, connection)
    assert not ends.links[NEAR].has_frames(carrier)
    ends.links[NEAR].hurry()
    ends.take(NEAR, carrier)
    ends.move(NEAR, carrier)
    assert ends.links[FAR].replay_bytes == 0


def test_many_bytes_are_acknowledged_at_once() -> None:
    ends = Ends(window=1 << 20)
    carrier = ends.attach()
    connection = ends.links[NEAR].open(Protocol.BYTES)
    assert connection is not None
    ends.settle()
    ends.send(NEAR, connection, b"x" * (32 << 10))
    ends.take(NEAR, carrier)
    ends.move(NEAR, carrier)
    assert ends.links[FAR].has_frames(carrier)


def test_a_client_that_never_reads_stops_the_sender_at_its_window() -> None:
    ends, _, connection = one_connection()
    other = ends.links[NEAR].open(Protocol.BYTES)
    assert other is not None
    while room := ends.links[NEAR].room(connection):
        ends.send(NEAR, connection, b"x" * min(room, 1000))
        ends.settle_without_delivering(connection)
    assert ends.links[NEAR].replay_bytes == WINDOW
    ends.send(NEAR, other, b"served")
    ends.settle_without_delivering(connection)
    assert ends.passed_on[FAR, other] == b"served"


def test_a_window_stays_open_when_the_rest_of_a_message_arrives_that_is_not_read() -> None:
    ends, _, connection = one_connection()
    ends.send(NEAR, connection, b"x" * 3000, is_whole=False)
    ends.settle_without_delivering(connection)
    # (What waits for the rest of its message is acknowledged: a message may exceed the window.)
    assert ends.links[NEAR].room(connection) == WINDOW
    ends.send(NEAR, connection, b"y" * 1000)
    ends.settle_without_delivering(connection)
    ends.send(NEAR, connection, b"z" * ends.links[NEAR].room(connection))
    ends.settle_without_delivering(connection)
    assert ends.links[NEAR].room(connection) == 0
    ends.settle()
    assert ends.passed_on[FAR, connection] == ends.sent[NEAR, connection]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (frame_header(FrameKind.WHOLE, 1, 1, LARGEST) + b"x" * LARGEST, "window"),
        (frame_header(FrameKind.WHOLE, 1, 0, 1) + b"x", "opening"),
        (frame_header(FrameKind.OPEN, 1, 0, 1) + b"x", "no protocol"),
        (frame_header(FrameKind.SYNC, 0, 0, 2) + b"xx", "too short"),
        (frame_header(FrameKind.SYNC, 0, 0, 9) + b"\0" * 4 + b"\0\0\1\0" + b"x", "SYNC with 256"),
        (frame_header(FrameKind.WHOLE, 1, 0, 1 << 30), "too long"),
        (b"\x63" + b"\0" * 16, "kind 99"),
    ],
)
def test_violations_are_refused(frame: bytes, reason: str) -> None:
    far = Link(is_near=False, window_bytes=WINDOW)
    far.attach(1)
    with pytest.raises(LinkViolation, match=reason):
        far.receive(1, memoryview(frame), 0.0)


def test_more_than_the_allowed_connections_are_refused() -> None:
    near = Link(is_near=True)
    opened = [near.open(Protocol.BYTES) for _ in range(MAX_CONNECTIONS + 1)]
    assert opened[-1] is None
    assert None not in opened[:-1]


def test_a_reset_reaches_the_other_end_even_if_its_carrier_is_lost() -> None:
    ends, carrier, connection = one_connection()
    ends.links[FAR].reset(connection, "the proxy hung up")
    ends.take(FAR, carrier)
    ends.cut(carrier)
    ends.attach()
    ends.settle()
    assert "closed the connection" in ends.resets[NEAR, connection]
    assert ends.links[NEAR].connections == ()


def test_the_end_of_a_session_reaches_the_other_end() -> None:
    ends, _, _ = one_connection()
    ends.links[NEAR].bye("the user closed it")
    ends.settle()
    assert ends.over == ["the user closed it"]
