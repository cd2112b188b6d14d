"""Which connection's bytes a link sends next, and on which carrier, without I/O.

A connection is *light* while the peer has to acknowledge little of it, as with requests and their
answers, and *heavy* when it transfers much. Light ones come first, and are not paced. Of several
carriers the first transports no heavy connections, so that a small message does not wait behind
what a large transfer has queued on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from shared_pathways_service.tunnel.link.link_frames import MAX_PAYLOAD_BYTES
from shared_pathways_service.tunnel.link.link_streams import Piece, SendStream
from shared_pathways_service.tunnel.link.pacing import Pacing

__all__ = ["SendOrder"]

#: Unacknowledged bytes up to which a connection is light, and as a part of the window.
_LIGHT_BYTES, _LIGHT_PART = 64 << 10, 8
#: Pieces in what may be under way. (On a slow line a long one takes longer than the round trip,
#: which looks like a queue.)
_PIECES, _LEAST_PIECE_BYTES = 8, 16 << 10


class SendOrder:
    """The connections that have something to send, in turns.

    Args:
      window_bytes: The least window of a connection.
      most_bytes: The limit of what is under way of heavy ones.
    """

    def __init__(self, window_bytes: int, most_bytes: int) -> None:
        self._pacing = Pacing(most_bytes)
        self._light_bytes = min(_LIGHT_BYTES, window_bytes // _LIGHT_PART)
        self._under_way = 0  # of heavy connections
        self._light: deque[int] = deque()
        self._heavy: deque[int] = deque()
        self._carriers: dict[int, None] = {}  # the oldest first

    def attach(self, carrier: int) -> None:
        """Adds a carrier."""
        self._carriers[carrier] = None

    def detach(self, carrier: int) -> None:
        """Removes a carrier."""
        del self._carriers[carrier]

    @property
    def round_trip_s(self) -> float:
        """The shortest round trip of late, in seconds; 0 before the first one."""
        return self._pacing.round_trip_s

    @property
    def piece_bytes(self) -> int:
        """The length of a piece that takes a small part of the time of a round trip."""
        part = self._pacing.limit_bytes // _PIECES
        return min(max(part, _LEAST_PIECE_BYTES), MAX_PAYLOAD_BYTES)

    def add(self, number: int, stream: SendStream) -> None:
        """Adds a connection, which is not in it, if a piece of it waits."""
        if stream.has_waiting:
            is_light = stream.unacked_bytes <= self._light_bytes
            (self._light if is_light else self._heavy).append(number)

    def remove(self, number: int) -> None:
        """Removes a connection if it is in it."""
        for queue in (self._light, self._heavy):
            if number in queue:
                queue.remove(number)

    def may_send(self, carrier: int) -> bool:
        """Whether `take` has something for a carrier."""
        return bool(self._light) or self._may_send_heavy(carrier)

    def take(
        self, carrier: int, stream_of: Callable[[int], SendStream], now: float
    ) -> tuple[int, Piece]:
        """Returns the next piece for a carrier, which `may_send`, with its connection's number.

        Args:
          carrier: Takes the piece.
          stream_of: Returns the stream of a connection.
          now: Seconds on a monotonic clock.
        """
        is_light = bool(self._light)
        number = (self._light if is_light else self._heavy).popleft()
        stream = stream_of(number)
        piece = stream.take(carrier, now)
        piece.is_paced = not is_light
        if piece.is_paced:
            self._under_way += piece.length
        self.add(number, stream)
        return number, piece

    def arrived(self, pieces: Sequence[Piece], now: float) -> None:
        """Records that pieces have arrived at the peer."""
        paced = [piece for piece in pieces if piece.is_paced]
        if paced:
            size = sum(piece.length for piece in paced)
            self._pacing.on_ack(paced[-1].sent_at, size, self._under_way, now)
            self._under_way -= size
        elif pieces:
            self._pacing.on_light_ack(pieces[-1].sent_at, now)

    def dropped(self, pieces: Iterable[Piece]) -> None:
        """Records that pieces are not under way any more."""
        self._under_way -= sum(piece.length for piece in pieces if piece.is_paced)

    def _may_send_heavy(self, carrier: int) -> bool:
        if not self._heavy or self._under_way >= self._pacing.limit_bytes:
            return False
        return len(self._carriers) == 1 or carrier != next(iter(self._carriers))
