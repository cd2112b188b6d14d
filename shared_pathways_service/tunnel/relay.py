"""Listens on a local socket, and forwards each connection to a pod."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import aiohttp
import tenacity

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError, TunnelError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.counters import TunnelCounters
from shared_pathways_service.tunnel.link.near_uploads import UploadEnds, UploadWatch
from shared_pathways_service.tunnel.local_listener import LocalListener
from shared_pathways_service.tunnel.pump import Broken, Pump, PumpTimes
from shared_pathways_service.tunnel.websocket import WebSocketViolation
from shared_pathways_service.tunnel.websocket_upgrade import Dial, Upgraded, upgraded

__all__ = ["FailureKind", "Relay", "RelayOptions", "TunnelFailure", "ignore_failure", "is_final"]

#: Status codes 4xx that ask for a retry: too slow, too many requests.
_NOT_FINAL = (408, 429)
_SETUP_ERRORS = (SharedPathwaysError, aiohttp.ClientError, OSError)


class FailureKind(enum.Enum):
    """The kind of a failure.

    Attributes:
      REFUSED: The API server's answer to a dial is final. The relay has ended.
      POD_DIED: `Relay.pod_died` was called. The relay has ended.
      UNREACHABLE: No dial succeeded in time. A later connection dials again.
      PORT: The pod did not accept the connection, or lost it. A later connection dials again.
      BROKEN: An open port-forward broke. A later connection dials again.
      OVER: The session of a link cannot be resumed. The relay has ended.
    """

    REFUSED = "refused"
    POD_DIED = "pod_died"
    UNREACHABLE = "unreachable"
    PORT = "port"
    BROKEN = "broken"
    OVER = "over"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunnelFailure:
    """A failure as `on_failure` receives it.

    Attributes:
      error: ``error.__cause__`` is the error of the dial, if a dial failed.
    """

    kind: FailureKind
    error: TunnelError

    @property
    def is_final(self) -> bool:
        """Whether it ended the relay, so that every later connection is refused."""
        return self.kind in (FailureKind.REFUSED, FailureKind.POD_DIED, FailureKind.OVER)


def ignore_failure(failure: TunnelFailure) -> None:
    """No-op failure callback."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelayOptions:
    """Times of a relay.

    Attributes:
      dial: Time for one dial; longer than a dial's own timeout, whose error is more precise.
      redial: Time for all dials of one connection together.
      pump: Times of open connections.
    """

    dial: Timeout = timeouts.TUNNEL_DIAL
    redial: Timeout = timeouts.TUNNEL_REDIAL
    pump: PumpTimes = dataclasses.field(default_factory=PumpTimes)


class Relay:
    """Listens on this machine and forwards every connection to one port of one pod.

    Args:
      dial: Opens one port-forward.
      pod: The pod's name, for errors.
      runtime_dir: The directory for the Unix socket; created for this user only if it is missing.
      local_port: None: a Unix socket; otherwise a loopback TCP port, 0 for any.
      on_failure: Called at once with failures, but not for ordinary ends; must not block.
      options: The timeouts.

    Attributes:
      counters: Counters of forwarded data.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        pod: str,
        runtime_dir: Path,
        local_port: int | None = None,
        on_failure: Callable[[TunnelFailure], object] = ignore_failure,
        options: RelayOptions | None = None,
    ) -> None:
        self.counters = TunnelCounters()
        self._dial = dial
        self._pod = pod
        self._listener = LocalListener(runtime_dir, local_port, self._accept)
        self._on_failure = on_failure
        self._options = options or RelayOptions()
        self._loop = asyncio.get_running_loop()
        self._upload_ends = UploadEnds()
        self._connections: set[asyncio.Task[None]] = set()
        self._ended: TunnelError | None = None

    async def start(self) -> str:
        """Listens; returns and raises as `LocalListener.start`."""
        return self._listener.start()

    def pod_died(self, reason: str) -> None:
        """Ends every connection at once and refuses later ones; calls `on_failure`."""
        message = f"pod {self._pod} has died: {reason}"
        self._end(FailureKind.POD_DIED, TunnelError(message, pod=self._pod, cause=reason))

    async def close(self) -> None:
        """Ends every connection and stops listening; leaves no task, socket or file."""
        self._listener.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._upload_ends.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _accept(self, local: socket.socket) -> None:
        watch = self._upload_ends.watch(local)
        connection = self._loop.create_task(self._forward(local, watch))
        self._connections.add(connection)
        connection.add_done_callback(functools.partial(self._forget, local, watch))

    async def _forward(self, local: socket.socket, watch: UploadWatch) -> None:
        if self._ended:
            return
        try:
            remote = await self._dial_until_open()
        except _SETUP_ERRORS as error:
            self._report_dial(error)
            return
        with contextlib.closing(remote), self._counted():
            try:
                await Pump(local, remote, self._options.pump, watch, self.counters).run()
            except TunnelError as error:
                self._report(FailureKind.PORT, error)
            except (Broken, WebSocketViolation) as error:
                self._report(FailureKind.BROKEN, error)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.counters.opened += 1
        self.counters.connections += 1
        try:
            yield
        finally:
            self.counters.connections -= 1

    def _forget(
        self, local: socket.socket, watch: UploadWatch, connection: asyncio.Task[None]
    ) -> None:
        # Not in the task, which does not run at all if it is cancelled before it begins.
        watch.take_over(local)
        self._connections.discard(connection)

    async def _dial_until_open(self) -> Upgraded:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_transient),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
            stop=tenacity.stop_after_delay(self._options.redial.s),
            reraise=True,
        ):
            with attempt:
                self.counters.redials += attempt.retry_state.attempt_number > 1
                async with asyncio.timeout(self._options.dial.s):
                    return await upgraded(self._dial)
        raise AssertionError("the last attempt returns or raises")

    def _report_dial(self, error: Exception) -> None:
        cause = str(error) or type(error).__name__
        failure = TunnelError(
            f"no connection to pod {self._pod}: {cause}", pod=self._pod, cause=cause
        )
        failure.__cause__ = error
        if is_final(error):
            self._end(FailureKind.REFUSED, failure)
        else:
            self._on_failure(TunnelFailure(kind=FailureKind.UNREACHABLE, error=failure))

    def _report(self, kind: FailureKind, error: Exception) -> None:
        cause = error.cause if isinstance(error, TunnelError) else str(error)
        failure = TunnelError(
            f"the connection to pod {self._pod} broke: {cause}", pod=self._pod, cause=cause
        )
        failure.__cause__ = error
        self._on_failure(TunnelFailure(kind=kind, error=failure))

    def _end(self, kind: FailureKind, error: TunnelError) -> None:
        """Refuses all further connections by closing them at once."""
        if self._ended:
            return
        self._ended = error
        for task in self._connections - {asyncio.current_task()}:
            task.cancel()
        self._on_failure(TunnelFailure(kind=kind, error=error))


def is_final(error: BaseException) -> bool:
    """Whether the API server's answer to a dial is final."""
    if isinstance(error, AccessDenied) or getattr(error, "is_final", False):
        return True
    if not isinstance(error, aiohttp.ClientResponseError):
        return False
    return 400 <= error.status < 500 and error.status not in _NOT_FINAL


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, _SETUP_ERRORS) and not is_final(error)
