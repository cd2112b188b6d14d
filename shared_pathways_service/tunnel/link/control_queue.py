"""Frames that a link sends before those of streams, without I/O."""

from __future__ import annotations

from collections.abc import Iterator

from shared_pathways_service.tunnel.link.link_frames import FrameKind, frame_header

__all__ = ["ControlQueue"]

#: Frames about closed connections: more of them wait only if a peer asks for them and never reads.
_MOST_CLOSED = 1024


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
