"""One end of a link with its carriers and local sockets: what both ends do alike."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence

from shared_pathways_service.patience import timeouts
from shared_pathways_service.tunnel.link.carriers import Carrier
from shared_pathways_service.tunnel.link.link_events import (
    Arrived,
    Ended,
    LinkEvent,
    Opened,
    Over,
    Reset,
)
from shared_pathways_service.tunnel.link.link_frames import LinkViolation
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.local_sockets import Bridge
from shared_pathways_service.tunnel.liveness import Liveness, Verdict

__all__ = ["LinkEnd"]

#: Bytes that one carrier takes before the next has its turn.
_TURN_BYTES = 256 << 10
#: Seconds for which the acknowledgement of a small message waits for other frames: most often the
#: answer to the message takes it along. Well below the delays that `Pacing` reacts to.
_ACK_S = 0.002
#: Seconds between two looks at PINGs and silent carriers.
_TICK_INTERVAL_S = 1.0
#: Seconds without a byte after which a carrier is asked for a sign of life.
_PING_INTERVAL_S = 10.0
_STALE = "this machine no longer has the address of the connection"
#: Seconds by which a look is late when this machine slept, or this process was stopped.
_ASLEEP_S = 30.0


@dataclasses.dataclass(slots=True)
class _Attached:
    number: int
    liveness: Liveness
    given_up: str = ""  # why this end closed it


class LinkEnd:
    """Moves bytes between carriers and local sockets.

    Args:
      link: The end of the link.
      on_opened: Called when the peer opens a connection.
      on_over: Called when the peer ends the session or violates the protocol.
      on_awake: Called when this machine slept, or this process was stopped.
    """

    def __init__(
        self,
        link: Link,
        *,
        on_opened: Callable[[Opened], None],
        on_over: Callable[[str], None],
        on_awake: Callable[[], None] = lambda: None,
    ) -> None:
        self.link = link
        self._loop = asyncio.get_running_loop()
        self._on_opened = on_opened
        self._on_over = on_over
        self._on_awake = on_awake
        # Of the clock that goes on while the machine sleeps.
        self._looked_at = time.time()
        self._carriers: dict[Carrier, _Attached] = {}
        self._bridges: dict[int, Bridge] = {}
        self._numbers = itertools.count(1)
        self._tick = self._loop.call_later(_TICK_INTERVAL_S, self._on_tick)
        self._ack_at: float | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._progress = asyncio.Event()

    @property
    def carriers(self) -> int:
        """The number of carriers that work."""
        return len(self._carriers)

    def add_carrier(self, carrier: Carrier) -> None:
        """Uses a carrier whose handshake is complete."""
        number = next(self._numbers)
        self._carriers[carrier] = _Attached(
            number, Liveness(_PING_INTERVAL_S, timeouts.LINK_PONG, self._loop.time())
        )
        self.link.attach(number)
        self.move()

    def remove_carrier(self, carrier: Carrier) -> str:
        """Stops using a carrier, which broke; what it lost goes to the others.

        Returns:
          Why this end closed it; empty: it did not.
        """
        if (attached := self._carriers.pop(carrier, None)) is not None:
            self.link.detach(attached.number)
            self.move()
        self._progress.set()
        return "" if attached is None else attached.given_up

    def drop_carriers(self, reason: str) -> None:
        """Closes all carriers."""
        for carrier, attached in list(self._carriers.items()):
            attached.given_up = reason
            carrier.close()

    def add_bridge(self, connection: int, bridge: Bridge, early: bytes = b"") -> None:
        """Connects a local socket."""
        if self._is_closed:
            bridge.close()
            return
        self._bridges[connection] = bridge
        bridge.start(early)
        self.move()

    def move(self) -> None:
        """Sends what there is to send, as far as the carriers accept it."""
        if self._is_closed:
            return
        is_moving = True
        while is_moving:
            is_moving = False
            for carrier, attached in self._carriers.items():
                if not carrier.is_full and self.link.has_frames(attached.number):
                    now = self._loop.time()
                    carrier.write(self.link.take(attached.number, now, _TURN_BYTES))
                    is_moving = True
        self._time_ack()

    def received(self, carrier: Carrier, parts: Sequence[memoryview]) -> None:
        """Takes bytes from a carrier."""
        if self._is_closed or (attached := self._carriers.get(carrier)) is None:
            return
        attached.liveness.on_data()
        now = self._loop.time()
        for part in parts:
            try:
                events = self.link.receive(attached.number, part, now)
            except LinkViolation as error:
                self._on_over(f"the other end violated the protocol: {error}")
                return
            for event in events:
                if not self._is_closed:
                    self._handle(event)
            if carrier not in self._carriers:
                break
        for bridge in list(self._bridges.values()):
            bridge.resume()
        self.move()
        self._progress.set()

    async def drain(self) -> None:
        """Waits until the other end has passed everything on, or there is no carrier."""
        while self._carriers:
            # (The local sockets may have bytes that are not read yet.)
            await asyncio.sleep(timeouts.LINK_SETTLE.s)
            if not self.link.replay_bytes:
                return
            await self._wait_for_progress()

    def close(self, reason: str) -> None:
        """Ends the session: closes every local socket, and every carrier once it has the reason.

        Args:
          reason: For the other end.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._tick.cancel()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        for bridge in list(self._bridges.values()):
            bridge.close()
        # On each carrier, full ones included, as any may be about to break.
        for carrier, attached in self._carriers.items():
            self.link.bye(reason)
            carrier.write(self.link.take(attached.number, self._loop.time(), limit_bytes=0))
            carrier.finish()

    async def wait_closed(self) -> None:
        """Waits, after `close`, until the carriers are closed."""
        while self._carriers:
            await self._wait_for_progress()

    # ---- a bridge's owner

    def bridge_moved(self) -> None:
        """The link has something to send."""
        self.move()

    def bridge_closed(self, connection: int) -> None:
        """The local socket is closed."""
        self._bridges.pop(connection, None)

    # ---- internals

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _handle(self, event: LinkEvent) -> None:
        if isinstance(event, Over):
            self._on_over(event.reason)
        elif isinstance(event, Opened):
            self._on_opened(event)
        elif (bridge := self._bridges.get(event.connection)) is None:
            # (Closed in the meantime; what arrives for it is dropped.)
            self.link.reset(event.connection, "the local connection is closed")
        elif isinstance(event, Arrived):
            bridge.arrived(event)
        elif isinstance(event, Ended):
            bridge.peer_ended()
        elif isinstance(event, Reset):
            bridge.close()

    def _time_ack(self) -> None:
        if not self.link.is_ack_waiting:
            self._ack_at = None
        elif self._ack_at is None:
            self._ack_at = self._loop.time() + _ACK_S
            if self._ack_timer is None:
                self._ack_timer = self._loop.call_at(self._ack_at, self._on_ack_timer)

    def _on_ack_timer(self) -> None:
        self._ack_timer = None
        if self._ack_at is not None and self._loop.time() < self._ack_at:
            # (For one that was taken along meanwhile; setting it anew each time would cost more.)
            self._ack_timer = self._loop.call_at(self._ack_at, self._on_ack_timer)
        elif self._ack_at is not None:
            self.link.hurry()
            self.move()

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(_TICK_INTERVAL_S, self._on_tick)
        now = self._loop.time()
        asleep_s, self._looked_at = time.time() - self._looked_at, time.time()
        if asleep_s > _ASLEEP_S:
            self._on_awake()
        for bridge in list(self._bridges.values()):
            bridge.answer_pings(now)
        for carrier, attached in list(self._carriers.items()):
            verdict = attached.liveness.check(now, is_blocked=False)
            if verdict is Verdict.PING:
                self.link.ping(attached.number, int(now * 1000))
            elif verdict is Verdict.GONE or carrier.is_stale:
                attached.given_up = _STALE if carrier.is_stale else _silent()
                carrier.close()
        self.move()


def _silent() -> str:
    return f"no sign of life for {_PING_INTERVAL_S + timeouts.LINK_PONG.s:g} s"
