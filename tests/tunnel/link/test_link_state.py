"""The two ends of a link: every byte once and in order, whatever happens to the carriers."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque

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
    Arrived,
    Ended,
    Opened,
    Over,
    Protocol,
    Reset,
)
from shared_pathways_service.tunnel.link.link_frames import FrameKind, LinkViolation, frame_header
from shared_pathways_service.tunnel.link.link_state import MAX_CONNECTIONS, Link

_WINDOW = 4096
NEAR, FAR = 0, 1
ENDS = st.sampled_from((NEAR, FAR))
SIZES = st.integers(min_value=1, max_value=5000)


class Ends:
    """Two ends, and carriers between them that deliver bytes when they are asked to."""

    def __init__(self, window: int = _WINDOW) -> None:
        self.links = (
            Link(is_near=True, window_bytes=window),
            Link(is_near=False, window_bytes=window),
        )
        self.now = 0.0
        self._numbers = itertools.count(1)
        #: Per carrier and sender: bytes on their way.
        self.carriers: dict[int, tuple[bytearray, bytearray]] = {}
        self.sent: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self.passed_on: dict[tuple[int, int], bytearray] = defaultdict(bytearray)
        self.undelivered: dict[tuple[int, int], deque[Arrived]] = defaultdict(deque)
        self.opened: list[int] = []
        self.ended: set[tuple[int, int]] = set()
        self.resets: dict[tuple[int, int], str] = {}
        self.over: list[str] = []

    def attach(self) -> int:
        carrier = next(self._numbers)
        for link in self.links:
            link.attach(carrier)
        self.carriers[carrier] = (bytearray(), bytearray())
        return carrier

    def cut(self, carrier: int) -> None:
        del self.carriers[carrier]
        for link in self.links:
            link.detach(carrier)

    def send(self, end: int, connection: int, data: bytes, *, is_whole: bool = True) -> None:
        self.links[end].send(connection, data, is_whole=is_whole)
        self.sent[end, connection] += data

    def take(self, end: int, carrier: int, limit: int = 1 << 20) -> None:
        self.now += 0.001
        for frame in self.links[end].take(carrier, self.now, limit):
            self.carriers[carrier][end].extend(frame)

    def move(self, end: int, carrier: int, size: int = 1 << 30) -> None:
        """Lets `size` bytes that `end` sent arrive."""
        way = self.carriers[carrier][end]
        data = bytes(way[:size])
        del way[:size]
        other = 1 - end
        for event in self.links[other].receive(carrier, memoryview(data), self.now):
            if isinstance(event, Opened):
                self.opened.append(event.connection)
            elif isinstance(event, Arrived):
                self.undelivered[other, event.connection].append(event)
            elif isinstance(event, Ended):
                self.ended.add((other, event.connection))
            elif isinstance(event, Reset):
                self.resets[other, event.connection] = event.reason
            elif isinstance(event, Over):
                self.over.append(event.reason)

    def deliver(self, end: int, connection: int) -> None:
        arrived = self.undelivered[end, connection].popleft()
        for payload in arrived.payloads:
            self.passed_on[end, connection] += payload
        self.links[end].delivered(connection, arrived.end)

    def settle(self) -> None:
        """Moves everything until nothing is left to move."""
        self.settle_without_delivering(None)

    def settle_without_delivering(self, blocked: int | None) -> None:
        """Moves everything, but passes nothing on for one connection."""
        for _ in range(1000):
            is_busy = False
            for carrier, end in itertools.product(self.carriers, (NEAR, FAR)):
                if self.links[end].has_frames(carrier):
                    self.take(end, carrier)
                if self.carriers[carrier][end]:
                    is_busy = True
                    self.move(end, carrier)
            for (end, connection), waiting in self.undelivered.items():
                while waiting and connection != blocked:
                    is_busy = True
                    self.deliver(end, connection)
            if not is_busy:
                return
        raise AssertionError("the two ends never come to rest")


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

    @invariant()
    def nothing_is_invented(self) -> None:
        for (end, connection), data in self.ends.passed_on.items():
            assert self.ends.sent[1 - end, connection].startswith(data)
        assert not self.ends.resets
        for link in self.ends.links:
            assert link.replay_bytes <= len(link.connections) * (_WINDOW + 2)

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


def test_a_client_that_never_reads_stops_the_sender_at_its_window() -> None:
    ends, _, connection = one_connection()
    other = ends.links[NEAR].open(Protocol.BYTES)
    assert other is not None
    while room := ends.links[NEAR].room(connection):
        ends.send(NEAR, connection, b"x" * min(room, 1000))
        ends.settle_without_delivering(connection)
    assert ends.links[NEAR].replay_bytes == _WINDOW
    ends.send(NEAR, other, b"served")
    ends.settle_without_delivering(connection)
    assert ends.passed_on[FAR, other] == b"served"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (frame_header(FrameKind.WHOLE, 1, 1, _WINDOW + 2) + b"x" * (_WINDOW + 2), "window"),
        (frame_header(FrameKind.WHOLE, 1, 0, 1) + b"x", "opening"),
        (frame_header(FrameKind.OPEN, 1, 0, 1) + b"x", "no protocol"),
        (frame_header(FrameKind.SYNC, 0, 0, 2) + b"xx", "too short"),
        (frame_header(FrameKind.SYNC, 0, 0, 9) + b"\0" * 4 + b"\0\0\1\0" + b"x", "SYNC with 256"),
        (frame_header(FrameKind.WHOLE, 1, 0, 1 << 30), "too long"),
        (b"\x63" + b"\0" * 16, "kind 99"),
    ],
)
def test_violations_are_refused(frame: bytes, reason: str) -> None:
    far = Link(is_near=False, window_bytes=_WINDOW)
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
