"""The near end of a link, in the agent: accepts local connections, and keeps carriers open.

Each carrier is dialled again, with jittered backoff, when it breaks. A local connection stays open
while there is none; it is closed when the session is over. While there is none, one dial at a time
is made: the others follow when it has succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol as Interface

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.backoff import Backoff
from shared_pathways_service.runtime.machine_clock import machine_time
from shared_pathways_service.tunnel.link.carriers import CarrierOwner
from shared_pathways_service.tunnel.link.early_answers import EarlyAnswers, EarlyBuffers
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.link_end import LinkEnd
from shared_pathways_service.tunnel.link.link_events import Opened, Protocol
from shared_pathways_service.tunnel.link.link_frames import LinkViolation
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.local_sockets import Bridge
from shared_pathways_service.tunnel.link.near_handshake import (
    Approach,
    Credentials,
    SessionOver,
    reason_of,
)
from shared_pathways_service.tunnel.link.near_uploads import UploadEnds

__all__ = ["DialCarrier", "LinkState", "NearEnd", "NearOptions", "NearOwner"]

#: Opens one carrier that reports to this owner.
DialCarrier = Callable[[CarrierOwner], Awaitable[None]]

_FIRST_BACKOFF_S = 0.2
_FIRST_BYTES = 4096


class LinkState(enum.Enum):
    """Whether bytes can move."""

    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"
    OVER = "over"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearOptions:
    """Numbers of a near end.

    Attributes:
      carriers: Carriers at once.
      dial: The time for a dial with its handshake.
      max_backoff_s: Limit of the pause between two dials.
      keep_s: Seconds without a carrier after which the session is over.
      early_from_s: Round trip in seconds from which small host buffers are sent early.
      speaks: The time for the first bytes of a client of HTTP/2.
      disconnect: The time in which JAX disconnects after a failed upload.
    """

    carriers: int = 2
    dial: Timeout = timeouts.LINK_DIAL
    max_backoff_s: float = 5.0
    keep_s: float = 600.0
    early_from_s: float = 0.01
    speaks: Timeout = timeouts.LINK_CLIENT_SPEAKS
    disconnect: Timeout = timeouts.JAX_DISCONNECT


class NearOwner(Interface):
    """What a near end reports; none of these may block."""

    def is_final(self, error: Exception) -> bool:
        """Whether no later dial can succeed after this error of a dial."""

    def link_changed(self, state: LinkState, reason: str) -> None:
        """The state is another one now, for this reason (empty for `UP`)."""

    def dial_failed(self, attempt: int, reason: str) -> None:
        """A dial failed while there is no carrier: the first, second, … since the last one."""


class NearEnd:
    """A session with a far end.

    Args:
      dial: Opens a carrier.
      token: The token of the proxy's tenant.
      owner: Is notified.
      options: The numbers.

    Attributes:
      state: The present state.
      failed_dials: How many dials failed so far.
      redials: How many dials followed a failed one of the same carrier.
      losses: How often there was no carrier any more.
      early_buffers: Host buffers that arrived before their lookup.
    """

    def __init__(
        self,
        dial: DialCarrier,
        token: bytes,
        owner: NearOwner,
        options: NearOptions | None = None,
    ) -> None:
        self._dial = dial
        self._owner = owner
        self._options = options or NearOptions()
        self._loop = asyncio.get_running_loop()
        self._end = LinkEnd(
            Link(is_near=True),
            on_opened=self._refuse_opened,
            on_over=self._on_over,
            on_awake=self._on_awake,
        )
        self._credentials = Credentials(token)
        self._upload_ends = UploadEnds(self._options.disconnect)
        self.early_buffers = EarlyBuffers()
        self._round_trip_s = 0.0  # of the last carrier's handshake
        self._dialers: list[asyncio.Task[None]] = []
        self._greeters: set[asyncio.Task[None]] = set()
        self._is_up = asyncio.Event()
        self._hurry = asyncio.Event()
        self._attempt = 0
        # Of the clock that goes on while this machine sleeps, as those of others do.
        self._lost_at: float | None = None
        self.state = LinkState.CONNECTING
        self.failed_dials = self.redials = 0
        self.losses = 0

    @property
    def link(self) -> Link:
        """The end of the link, for its counters."""
        return self._end.link

    @property
    def carriers(self) -> int:
        """The number of carriers that work."""
        return self._end.carriers

    def start(self) -> None:
        """Begins to dial."""
        numbers = range(self._options.carriers)
        self._dialers = [self._loop.create_task(self._keep_carrier(n)) for n in numbers]

    def accept(self, local: socket.socket) -> None:
        """Takes over a connected, non-blocking local socket."""
        greeter = self._loop.create_task(self._accept(local))
        self._greeters.add(greeter)

        def forget(done: asyncio.Task[None]) -> None:
            self._greeters.discard(done)
            if done.cancelled():
                # (Perhaps before it began.)
                local.close()

        greeter.add_done_callback(forget)

    def end(self, reason: str) -> None:
        """Ends the session's connections at once; `close` must follow."""
        self._on_over(reason)

    async def close(self) -> None:
        """Ends the session."""
        self._end.close("the near end has closed the session")
        tasks = [*self._dialers, *self._greeters]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._upload_ends.close()
        await self._end.wait_closed()

    # ---- local connections

    async def _accept(self, local: socket.socket) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(local.close)
            await self._wait_until_it_speaks(local)
            try:
                # (Also after the wait, as this process may have been stopped in it.)
                early = local.recv(_FIRST_BYTES)
                if not early:
                    return
            except BlockingIOError:
                # A silent client is connected as well: it may wait for the server to hang up.
                early = b""
            except OSError:
                return
            is_http2 = bool(early) and PREFACE.startswith(early[: len(PREFACE)])
            protocol = Protocol.HTTP2 if is_http2 else Protocol.BYTES
            is_over = self.state is LinkState.OVER
            connection = None if is_over else self._end.link.open(protocol)
            if connection is None:
                return
            undo.pop_all()
        is_early = is_http2 and self._round_trip_s >= self._options.early_from_s
        bridge = Bridge(
            *(self._end.link, connection, protocol, local, self._end),
            is_client=True,
            passes=EarlyAnswers(self.early_buffers) if is_early else None,
            watch=self._upload_ends.watch(local, is_http2=is_http2 or None),
        )
        self._end.add_bridge(connection, bridge, early)

    async def _wait_until_it_speaks(self, local: socket.socket) -> None:
        """Waits until there is something to read, but not for long."""
        is_readable = asyncio.Event()
        self._loop.add_reader(local, is_readable.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with within(self._options.speaks):
                    await is_readable.wait()
        finally:
            self._loop.remove_reader(local)

    def _refuse_opened(self, event: Opened) -> None:
        self._on_over(f"the far end opened connection {event.connection}, which only we do")

    # ---- carriers

    async def _keep_carrier(self, number: int) -> None:
        backoff = Backoff(first_s=_FIRST_BACKOFF_S, longest_s=self._options.max_backoff_s)
        has_failed = False
        while self.state is not LinkState.OVER:
            # (Its carrier may have broken while the wait for it was given up.)
            self._note_loss("the connection broke")
            if number and not self._end.carriers:
                await self._is_up.wait()
            approach = Approach(self._end, self._credentials, self._on_carrier)
            self.redials += has_failed
            has_failed = False
            try:
                async with asyncio.timeout(self._options.dial.s):
                    await self._dial(approach)
                    await approach.accepted
                self._round_trip_s = approach.round_trip_s
                backoff.reset()
                self._note_loss(await approach.lost)
            except (SessionOver, LinkViolation) as error:
                if self.state is LinkState.UP:
                    # (The other carriers have not noticed yet that their far end is gone.)
                    self._lose(str(error))
                self._on_over(str(error))
            except Exception as error:  # noqa: BLE001 - whatever a dial raises, it is tried again
                has_failed = True
                self._on_failed_dial(error)
            finally:
                approach.close()
            await self._pause(backoff.next_pause_s())

    async def _pause(self, seconds: float) -> None:
        """Waits for so long, or until this machine is awake again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        self._hurry.clear()

    def _on_carrier(self) -> None:
        self._attempt = 0
        self._lost_at = None
        self._is_up.set()
        self._set_state(LinkState.UP, "")

    def _note_loss(self, reason: str) -> None:
        if self.state is LinkState.UP and not self._end.carriers:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        self.losses += 1
        self._lost_at = machine_time()
        self._is_up.clear()
        self._set_state(LinkState.LOST, reason)

    def _on_failed_dial(self, error: Exception) -> None:
        reason = reason_of(error)
        self.failed_dials += 1
        if self._owner.is_final(error):
            self._on_over(reason)
        elif not self._end.carriers:
            self._attempt += 1
            self._owner.dial_failed(self._attempt, reason)
            if self._lost_at is not None and machine_time() - self._lost_at > self._options.keep_s:
                self._on_over(f"no connection for {self._options.keep_s:g} s; the last: {reason}")

    def _on_awake(self) -> None:
        # Connections from before have ended at the other end, or are about to.
        self._end.drop_carriers("this machine was asleep")
        self._hurry.set()

    def _on_over(self, reason: str) -> None:
        if self.state is not LinkState.OVER:
            self._set_state(LinkState.OVER, reason)
            self._end.close(reason)

    def _set_state(self, state: LinkState, reason: str) -> None:
        if state is not self.state and self.state is not LinkState.OVER:
            self.state = state
            self._owner.link_changed(state, reason)
