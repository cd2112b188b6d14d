"""Both ends of a link on a virtual clock, over a line with a delay and a rate."""

from __future__ import annotations

import heapq
import itertools

from shared_pathways_service.tunnel.link.link_events import Arrived, Opened, Protocol
from shared_pathways_service.tunnel.link.link_frames import Buffer
from shared_pathways_service.tunnel.link.link_state import Link
from tests.tunnel.link.two_ends import FAR, NEAR

__all__ = ["SimulatedLine"]

#: Seconds between two looks at the link, and bytes that a carrier takes in one.
STEP_S, TURN_BYTES = 0.001, 64 << 10


class SimulatedLine:
    """Sends from the near end; a local side of the far end reads.

    Args:
      window: The least window of a connection.
      round_trip_s: Without a queue.
      bytes_per_s: In each direction.
      is_old_far_end: Whether the far end says nothing about the window that it accepts.
    """

    def __init__(
        self,
        window: int,
        round_trip_s: float,
        bytes_per_s: float,
        *,
        is_old_far_end: bool = False,
    ) -> None:
        self.links = (
            Link(is_near=True, window_bytes=window),
            Link(is_near=False, window_bytes=window),
        )
        self.now = 0.0
        #: The most bytes that each connection kept.
        self.kept: dict[int, int] = {}
        #: Bytes that the far end's local side has read of each connection.
        self.read: dict[int, int] = {}
        #: Bytes per second that the local side reads; those that are missing: all.
        self.reads_per_s: dict[int, float] = {}
        self._delay_s, self._bytes_per_s = round_trip_s / 2, bytes_per_s
        self._free_at = [0.0, 0.0]
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._unread: dict[int, list[Arrived]] = {}
        self._allowance: dict[int, float] = {}
        for link in self.links:
            link.attach(1)
        self._exchange_syncs(is_old_far_end=is_old_far_end)

    def open(self) -> int:
        number = self.links[NEAR].open(Protocol.BYTES)
        assert number is not None
        self.kept[number] = self.read[number] = 0
        self._unread[number], self._allowance[number] = [], 0.0
        return number

    def run(self, seconds: float, *senders: int) -> None:
        """Sends as much as the link accepts on these connections."""
        until = self.now + seconds
        near = self.links[NEAR]
        while self.now < until:
            self.now += STEP_S
            for number in senders:
                while size := min(near.room(number), near.piece_bytes):
                    near.send(number, bytes(size), is_whole=True)
                kept = near._connections[number].send.unacked_bytes
                self.kept[number] = max(self.kept[number], kept)
            for end in (NEAR, FAR):
                self._take(end)
            self._arrive()
            self._let_read()

    def _exchange_syncs(self, *, is_old_far_end: bool) -> None:
        for end in (NEAR, FAR):
            sync = bytearray(b"".join(self.links[end].take(1, 0.0, 0)))
            if end == FAR and is_old_far_end:
                # The offset in the header.
                sync[5:13] = bytes(8)
            self.links[1 - end].receive(1, memoryview(sync), 0.0)

    def _take(self, end: int) -> None:
        link = self.links[end]
        link.hurry()
        # (A carrier is full while the line has a queue of 50 ms.)
        while link.has_frames(1) and self._free_at[end] < self.now + 0.05:
            self._send(end, link.take(1, self.now, TURN_BYTES))

    def _send(self, end: int, frames: list[Buffer]) -> None:
        for frame in frames:
            took = len(frame) / self._bytes_per_s
            self._free_at[end] = max(self._free_at[end], self.now) + took
            arrives = self._free_at[end] + self._delay_s
            heapq.heappush(self._under_way, (arrives, next(self._numbers), 1 - end, bytes(frame)))

    def _arrive(self) -> None:
        while self._under_way and self._under_way[0][0] <= self.now:
            _, _, end, data = heapq.heappop(self._under_way)
            for event in self.links[end].receive(1, memoryview(data), self.now):
                assert isinstance(event, Arrived | Opened), event
                if isinstance(event, Arrived):
                    self._unread[event.connection].append(event)

    def _let_read(self) -> None:
        for number, waiting in self._unread.items():
            rate = self.reads_per_s.get(number, float("inf"))
            self._allowance[number] += rate * STEP_S
            while (
                waiting and (size := sum(map(len, waiting[0].payloads))) <= self._allowance[number]
            ):
                self._allowance[number] -= size
                self.read[number] += size
                self.links[FAR].delivered(number, waiting.pop(0).end)
            # (It cannot save up what it does not read.)
            if not waiting:
                self._allowance[number] = 0.0
