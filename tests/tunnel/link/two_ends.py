"""Both ends of a link without I/O, and carriers between them that do as they are told."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque

from shared_pathways_service.tunnel.link.link_events import (
    Arrived,
    Ended,
    Opened,
    Over,
    Reset,
)
from shared_pathways_service.tunnel.link.link_state import Link

__all__ = ["FAR", "NEAR", "WINDOW", "Ends"]

WINDOW = 4096
NEAR, FAR = 0, 1


class Ends:
    """Two ends, and carriers between them that deliver bytes when they are asked to."""

    def __init__(self, window: int = WINDOW) -> None:
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
            for link in self.links:
                if link.is_ack_waiting:
                    link.hurry()
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
