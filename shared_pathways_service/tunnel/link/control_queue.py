"""Frames that a link sends before those of streams, and when, without I/O."""

from __future__ import annotations

from collections.abc import Iterator

from shared_pathways_service.tunnel.link.link_frames import FrameKind, frame_header

__all__ = ["AckQueue", "ControlQueue"]

#: Frames about closed connections: more of them wait only if a peer asks for them and never reads.
_MOST_CLOSED = 1024
#: Bytes that are acknowledged at once. Less than half of what may be under way at the least.
_AT_ONCE_BYTES = 32 << 10


class ControlQueue:
    """SYNC, PING and PONG of each carrier, and what any carrier takes; bounded, whatever comes.

    Without a carrier there is nothing to queue: the SYNC on the next one says which connections are
    closed.
    """

    def __init__(self) -> None:
        self._first: dict[int, dict[FrameKind, bytes]] = {}
        self._closed: dict[int, bytes] = {}
        self._bye = b""

    def attach(self, carrier: int, sync: bytes) -> None:
        """Adds a carrier, and its first frame."""
        self._first[carrier] = {FrameKind.SYNC: sync}

    def detach(self, carrier: int) -> None:
        """Removes a carrier."""
        del self._first[carrier]
        if not self._first:
            self._closed.clear()

    def put_sign_of_life(self, carrier: int, kind: FrameKind, number: int) -> None:
        """Adds a PING or PONG on this carrier, in place of an earlier one that still waits."""
        self._first[carrier][kind] = frame_header(kind, 0, number, 0)

    def put_closed(self, connection: int, frame: bytes) -> None:
        """Adds the last frame about a connection."""
        if self._first:
            self._closed[connection] = frame

    def put_bye(self, frame: bytes) -> None:
        """Adds the last frame of a session."""
        self._bye = frame

    @property
    def is_flooded(self) -> bool:
        """Whether a peer makes this end queue more than it reads."""
        return len(self._closed) >= _MOST_CLOSED

    def has_frames(self, carrier: int) -> bool:
        """Whether there is anything for this carrier."""
        return bool(self._first[carrier] or self._closed or self._bye)

    def take_first(self, carrier: int) -> list[bytes]:
        """Returns the frames that come before all others on this carrier."""
        frames = list(self._first[carrier].values())
        self._first[carrier].clear()
        return frames

    def take_others(self) -> Iterator[bytes]:
        """Yields the other frames, once."""
        yield from self._closed.values()
        self._closed.clear()
        if self._bye:
            yield self._bye
            self._bye = b""


class AckQueue:
    """Acknowledgements of few bytes wait for frames that go the same way anyhow.

    Attributes:
      is_due: Whether they have waited enough.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._bytes = 0
        self.is_due = False

    @property
    def is_waiting(self) -> bool:
        """Whether some wait, and may wait on."""
        return bool(self._numbers) and not self.is_due

    def add(self, number: int, size: int) -> None:
        """Adds a connection of which bytes have arrived or were passed on."""
        self._numbers.add(number)
        self._bytes += size
        self.is_due = self.is_due or self._bytes >= _AT_ONCE_BYTES

    def add_at_once(self, number: int) -> None:
        """Adds a connection of which an acknowledgement may be lost."""
        self.add(number, _AT_ONCE_BYTES)

    def discard(self, number: int) -> None:
        """Removes a connection."""
        self._numbers.discard(number)
        self.is_due = self.is_due and bool(self._numbers)

    def hurry(self) -> None:
        """Lets none of them wait any longer."""
        self.is_due = bool(self._numbers)

    def take(self) -> list[int]:
        """Returns the connections, and begins anew."""
        numbers = list(self._numbers)
        self._numbers.clear()
        self._bytes, self.is_due = 0, False
        return numbers
