"""One end of a link, without I/O: connections that outlive the carriers that transport them.

A *carrier* is an ordered byte stream between the two ends, which may break at any time; a link uses
one or several at once, and any of them for any connection. The near end opens connections (one for
each that a local client makes to it), the far end connects each with a server.

Nothing is lost with a carrier: pieces that it took and the peer did not acknowledge are sent again.
The first frame on a carrier (SYNC) says what the sender has of each connection, so that only
missing bytes are sent again, and a connection that one end gave up ends at the other.

Memory is bounded. What an end sends, it keeps until the peer has passed it on: a window of each
connection (`windows`), and no more than `SHARE_BYTES` of each while `BUDGET_BYTES` are kept of all.
So an end keeps at most 128 MiB of a session, in `MAX_PIECES` per connection. Of a peer that does
the same it has received as much at most, and a message that is not complete (16 MiB) of each
connection; of a peer that does not, as much as 64 connections of `WINDOW_BYTES` and one message
of each, then the session ends.
"""

from __future__ import annotations

from shared_pathways_service.tunnel.link.control_frames import (
    SyncEntry,
    parse_ack,
    parse_sync,
    parse_text,
    sync_frame,
    text_frame,
)
from shared_pathways_service.tunnel.link.control_queue import AckQueue, ControlQueue
from shared_pathways_service.tunnel.link.link_connections import Connection, KnownNumbers
from shared_pathways_service.tunnel.link.link_events import LinkEvent, Over, Protocol, Reset
from shared_pathways_service.tunnel.link.link_frames import (
    STREAM_KINDS,
    Buffer,
    Frame,
    FrameKind,
    LinkFrameReader,
    LinkViolation,
    frame_header,
)
from shared_pathways_service.tunnel.link.link_streams import MAX_PIECES, ReceiveStream, SendStream
from shared_pathways_service.tunnel.link.send_order import SendOrder
from shared_pathways_service.tunnel.link.windows import MAX_CONNECTIONS, WINDOW_BYTES, Windows

__all__ = ["Link"]

#: By how much the number of a new connection may exceed those before, as frames overtake others.
_MOST_AHEAD = 4096


class Link:
    """One end of a session.

    Args:
      is_near: Whether this end opens connections.
      window_bytes: The least window of each connection, the same at both ends.

    Attributes:
      sent_bytes: Bytes of connections that the peer has to get, each once.
      received_bytes: Bytes of connections that came, each once.
      replay_bytes: Bytes that are kept because the peer has not passed them on.
    """

    def __init__(self, *, is_near: bool, window_bytes: int = WINDOW_BYTES) -> None:
        self._is_near = is_near
        self._windows = Windows(window_bytes)
        self._connections: dict[int, Connection] = {}
        self._known = KnownNumbers()
        self._readers: dict[int, LinkFrameReader] = {}
        self._control = ControlQueue()
        self._acks = AckQueue()
        self._order = SendOrder(window_bytes, self._windows.accepts_bytes)
        self._events: list[LinkEvent] = []
        self.sent_bytes = self.received_bytes = self.replay_bytes = 0

    # ---- connections

    @property
    def connections(self) -> tuple[int, ...]:
        """The open connections."""
        return tuple(self._connections)

    @property
    def opened(self) -> int:
        """How many connections were opened so far."""
        return self._known.all_to

    @property
    def held_bytes(self) -> int:
        """Bytes that have arrived and are not passed on."""
        return sum(each.held_bytes for each in self._connections.values())

    def open(self, protocol: Protocol) -> int | None:
        """Opens a connection; returns its number, or None if there are too many."""
        assert self._is_near, "the far end does not open connections"
        if len(self._connections) >= MAX_CONNECTIONS:
            return None
        number = self._known.all_to + 1
        self._add(number)
        self._append(number, FrameKind.OPEN, protocol.value)
        return number

    def room(self, connection: int) -> int:
        """Returns how many bytes the connection accepts now; 0 if it is gone."""
        if (known := self._connections.get(connection)) is None:
            return 0
        if known.send.pieces >= MAX_PIECES:
            return 0
        return self._windows.room(known.send.unacked_bytes, self.replay_bytes)

    @property
    def piece_bytes(self) -> int:
        """The length of pieces to send."""
        return self._order.piece_bytes

    def send(self, connection: int, payload: Buffer, *, is_whole: bool) -> None:
        """Sends bytes.

        Args:
          connection: Its number.
          payload: Must not change; at most `MAX_PAYLOAD_BYTES` and `room`.
          is_whole: Whether a message of the connection's protocol ends with them.
        """
        self._append(connection, FrameKind.WHOLE if is_whole else FrameKind.PART, payload)

    def end(self, connection: int) -> None:
        """Sends that no more bytes follow."""
        known = self._connections.get(connection)
        if known is not None and not known.send.has_ended:
            self._append(connection, FrameKind.END)

    def delivered(self, connection: int, end: int) -> None:
        """Records that everything up to `end` of an `Arrived` was passed on."""
        if (known := self._connections.get(connection)) is None:
            return
        self._acks.add(connection, end - known.delivered_to)
        known.delivered_to = end
        self._forget_if_done(connection)

    def reset(self, connection: int, reason: str) -> None:
        """Gives a connection up, in both directions."""
        if self._forget(connection):
            self._queue_reset(connection, reason)

    def bye(self, reason: str) -> None:
        """Ends the session."""
        self._control.put_bye(text_frame(FrameKind.BYE, 0, reason))

    # ---- carriers

    def attach(self, carrier: int) -> None:
        """Adds a carrier, whose handshake is complete."""
        self._readers[carrier] = LinkFrameReader()
        self._control.attach(carrier, self._sync())
        self._order.attach(carrier)

    def detach(self, carrier: int) -> None:
        """Removes a carrier, which broke."""
        del self._readers[carrier]
        self._control.detach(carrier)
        self._order.detach(carrier)
        for number, known in self._connections.items():
            self._order.dropped(known.send.carrier_lost(carrier))
            self._order.remove(number)
            self._order.add(number, known.send)
            # It may have taken an acknowledgement with it.
            self._acks.add_at_once(number)

    def ping(self, carrier: int, number: int) -> None:
        """Asks for a sign of life on this carrier."""
        self._control.put_sign_of_life(carrier, FrameKind.PING, number)

    def has_frames(self, carrier: int) -> bool:
        """Whether `take` would return something."""
        is_due = self._acks.is_due or self._control.has_frames(carrier)
        return is_due or self._order.may_send(carrier)

    @property
    def is_ack_waiting(self) -> bool:
        """Whether an acknowledgement waits for other frames; `hurry` when it has waited enough."""
        return self._acks.is_waiting

    def hurry(self) -> None:
        """Has `take` return the acknowledgements that wait."""
        self._acks.hurry()

    def take(self, carrier: int, now: float, limit_bytes: int) -> list[Buffer]:
        """Returns frames for this carrier to send.

        Args:
          carrier: It has room for them.
          now: Seconds on a monotonic clock.
          limit_bytes: No more pieces are added after so many bytes.
        """
        frames: list[Buffer] = [*self._control.take_first(carrier)]
        frames += [self._connections[number].ack(number) for number in self._acks.take()]
        frames += self._control.take_others()
        size = 0
        while size < limit_bytes and self._order.may_send(carrier):
            number, piece = self._order.take(carrier, self._stream, now)
            size += piece.length
            frames.append(frame_header(piece.kind, number, piece.offset, len(piece.payload)))
            if piece.payload:
                frames.append(piece.payload)
        return frames

    def receive(self, carrier: int, data: memoryview, now: float) -> list[LinkEvent]:
        """Takes bytes from a carrier; returns what follows from them.

        Raises:
          LinkViolation: The peer violated the protocol; detach the carrier and end the session.
        """
        for frame in self._readers[carrier].feed(data):
            self._take_frame(carrier, frame, now)
        events, self._events = self._events, []
        return events

    # ---- internals

    def _add(self, number: int) -> Connection:
        known = self._connections[number] = Connection(
            SendStream(), ReceiveStream(self._windows.accepts_bytes)
        )
        self._known.add(number)
        return known

    def _stream(self, number: int) -> SendStream:
        return self._connections[number].send

    def _append(self, number: int, kind: FrameKind, payload: Buffer = b"") -> None:
        if (known := self._connections.get(number)) is None:
            return
        is_queued = known.send.has_waiting
        self.replay_bytes += known.send.append(kind, payload)
        if not is_queued:
            self._order.add(number, known.send)
        self.sent_bytes += len(payload) if kind is not FrameKind.OPEN else 0

    def _take_frame(self, carrier: int, frame: Frame, now: float) -> None:
        if frame.kind in STREAM_KINDS:
            self._take_stream(frame)
        elif frame.kind is FrameKind.ACK:
            self._take_ack(frame.connection, frame.offset, parse_ack(frame.payload), now)
        elif frame.kind is FrameKind.PING:
            self._control.put_sign_of_life(carrier, FrameKind.PONG, frame.offset)
        elif frame.kind is FrameKind.SYNC:
            self._windows.learn(frame.offset)
            self._take_sync(frame.payload, now)
        elif frame.kind is FrameKind.RESET:
            self._take_reset(frame.connection, parse_text(frame.payload))
        elif frame.kind is FrameKind.BYE:
            self._events.append(Over(parse_text(frame.payload)))

    def _take_stream(self, frame: Frame) -> None:
        known = self._connections.get(frame.connection)
        if known is None:
            known = self._unknown(frame.connection)
        if known is None:
            return
        if frame.offset > known.acked + self._windows.least_bytes:
            self._windows.check(each.waiting_bytes for each in self._connections.values())
        for each in known.receive.receive(frame, known.acked):
            if each.kind in (FrameKind.PART, FrameKind.WHOLE):
                self.received_bytes += len(each.payload)
            if (event := known.take_in_order(each, is_near=self._is_near)) is not None:
                self._events.append(event)
        # (Also for what came twice: the acknowledgement may be lost.)
        self._acks.add(frame.connection, len(frame.payload))
        self._forget_if_done(frame.connection)

    def _unknown(self, number: int) -> Connection | None:
        if self._control.is_flooded:
            raise LinkViolation("it does not read what it asks for about closed connections")
        if number in self._known:
            self._queue_reset(number, "the connection is closed")
            return None
        if self._is_near or number > self._known.top + _MOST_AHEAD:
            raise LinkViolation(f"connection {number} was never opened")
        if len(self._connections) >= MAX_CONNECTIONS:
            self._known.add(number)
            self._queue_reset(number, f"more than {MAX_CONNECTIONS} connections are open")
            return None
        return self._add(number)

    def _take_ack(self, number: int, passed_on: int, received: int, now: float) -> None:
        if (known := self._connections.get(number)) is None:
            return
        self._order.arrived(known.send.received(received), now)
        count = known.send.passed_on(passed_on)
        self.replay_bytes -= count
        self._windows.passed_on(count, self._order.round_trip_s, now)
        if not known.send.has_waiting:
            self._order.remove(number)
        self._forget_if_done(number)

    def _take_reset(self, number: int, reason: str) -> None:
        known = self._connections.get(number)
        if known is None:
            # (Given up before its opening was sent.)
            if not self._is_near and number <= self._known.top + _MOST_AHEAD:
                self._known.add(number)
            return
        is_over = known.send.has_ended and known.receive.has_ended
        self._forget(number)
        if not is_over:
            self._events.append(Reset(number, reason))

    def _queue_reset(self, number: int, reason: str) -> None:
        self._control.put_closed(number, text_frame(FrameKind.RESET, number, reason))

    def _forget_if_done(self, number: int) -> None:
        if (known := self._connections[number]).is_done:
            # The last acknowledgement; if it is lost, a SYNC tells the peer.
            self._control.put_closed(number, known.ack(number))
            self._forget(number)

    def _forget(self, number: int) -> bool:
        known = self._connections.pop(number, None)
        if known is None:
            return False
        self.replay_bytes -= known.send.unacked_bytes
        self._order.dropped(known.send.under_way())
        self._order.remove(number)
        self._acks.discard(number)
        return True

    # ---- what the two ends have, on a new carrier

    def _sync(self) -> bytes:
        entries = [
            SyncEntry(number, known.acknowledge(), known.receive.received)
            for number, known in self._connections.items()
        ]
        return sync_frame(self._known.all_to, entries, self._windows.accepts_bytes)

    def _take_sync(self, payload: Buffer, now: float) -> None:
        peer_knows_to, entries = parse_sync(payload, MAX_CONNECTIONS)
        for number, acked, received in entries:
            self._take_ack(number, acked, received, now)
        listed = {number for number, _, _ in entries}
        if not self._is_near:
            self._known.add_all_but(listed, peer_knows_to)
        for number in set(self._connections) - listed:
            if number <= peer_knows_to:
                self._take_reset(number, "the other end has closed the connection")
