"""A local socket whose every connection is one port-forward to a pod."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
import tenacity

from shared_pathways_service.core.tunnel.frames import DATA, Channels
from shared_pathways_service.errors import AccessDenied, SharedPathwaysError, TunnelError
from shared_pathways_service.settings import private_directory

__all__ = ["Dial", "FailureKind", "Relay", "RelayOptions", "TunnelFailure", "unheard"]

#: Opens one port-forward, with a token that is valid now. What it raises is final when it is an
#: `AccessDenied`, has a true ``is_final``, or is a handshake answered with 4xx but 408 and 429;
#: other `SharedPathwaysError`s, `aiohttp.ClientError`s and `OSError`s are tried again.
Dial = Callable[[], Awaitable["aiohttp.ClientWebSocketResponse[Any]"]]

_CHUNK = 256 << 10
_WAITING = (408, 429)


class FailureKind(enum.Enum):
    """What failed.

    Attributes:
      REFUSED: The API server's answer to a dial is final; every later connection is refused too.
      UNREACHABLE: No dial succeeded in time; a later connection dials anew.
      PORT: The pod did not take the connection, or lost it; a later connection dials anew.
      BROKEN: An open port-forward ended without a word; a later connection dials anew.
      POD_DIED: `Relay.pod_died` was called; every later connection is refused.
    """

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    PORT = "port"
    BROKEN = "broken"
    POD_DIED = "pod_died"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunnelFailure:
    """What `on_failure` is told; ``error.__cause__`` is what the dial raised, if it did.

    Attributes:
      final: Whether the relay has ended with it: every later connection is refused.
    """

    kind: FailureKind
    error: TunnelError
    final: bool


def unheard(failure: TunnelFailure) -> None:
    """For who does not want to hear."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelayOptions:
    """Times, in seconds.

    Attributes:
      dial_timeout_s: For one dial.
      redial_s: For one connection's dials together.
      ping_s: Between two pings.
    """

    dial_timeout_s: float = 10.0
    redial_s: float = 20.0
    ping_s: float = 20.0


class Relay:
    """Listens on this machine and forwards every connection to one port of one pod.

    Args:
      dial: Opens one port-forward.
      pod: The pod's name, for errors.
      runtime_dir: Where the Unix socket is made; made private if it is missing.
      local_port: None: a Unix socket; else a loopback TCP port, 0 for any.
      on_failure: Told at once what goes wrong; must not block. Not told of ordinary ends.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        pod: str,
        runtime_dir: Path,
        local_port: int | None = None,
        on_failure: Callable[[TunnelFailure], object] = unheard,
        options: RelayOptions | None = None,
    ) -> None:
        self._dial = dial
        self._pod = pod
        self._runtime_dir = runtime_dir
        self._local_port = local_port
        self._on_failure = on_failure
        self._options = options or RelayOptions()
        self._server: asyncio.Server | None = None
        self._socket: Path | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._ended: TunnelError | None = None

    async def start(self) -> str:
        """Listens; returns ``unix:/path`` or ``127.0.0.1:port``.

        Raises:
          OSError: The port is taken.
        """
        if self._local_port is not None:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._local_port, limit=_CHUNK
            )
            return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        directory = private_directory(self._runtime_dir, "SPS_RUNTIME_DIR")
        self._socket = directory / f"t-{secrets.token_hex(6)}"
        self._server = await asyncio.start_unix_server(self._serve, self._socket, limit=_CHUNK)
        return f"unix:{self._socket}"

    def pod_died(self, reason: str) -> None:
        """Ends every connection at once and refuses later ones; `on_failure` is told."""
        cause = f"pod {self._pod} has died: {reason}"
        self._end(FailureKind.POD_DIED, TunnelError(cause, pod=self._pod, cause=reason))

    async def close(self) -> None:
        """Ends every connection and stops listening; leaves no task, socket or file."""
        self._ended = self._ended or TunnelError("the relay was closed", pod=self._pod)
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass  # the relay ends; the task is the stream server's, which reports cancellation
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._ended:
            return
        try:
            remote = await self._dial_until_open()
        except (SharedPathwaysError, aiohttp.ClientError, OSError, TimeoutError) as error:
            final = _is_final(error)
            kind = FailureKind.REFUSED if final else FailureKind.UNREACHABLE
            cause = str(error) or type(error).__name__
            told = TunnelError(f"no way to pod {self._pod}: {cause}", pod=self._pod, cause=cause)
            told.__cause__ = error
            if final:
                self._end(kind, told)
            else:
                self._on_failure(TunnelFailure(kind=kind, error=told, final=False))
            return
        try:
            async with asyncio.TaskGroup() as group:
                up = group.create_task(_up(reader, remote))
                await _down(remote, writer)
                up.cancel()
        except* (TunnelError, aiohttp.ClientError, OSError) as broken:
            first = broken.exceptions[0]
            kind = FailureKind.PORT if isinstance(first, TunnelError) else FailureKind.BROKEN
            told = TunnelError(f"pod {self._pod}: {first}", pod=self._pod, cause=str(first))
            self._on_failure(TunnelFailure(kind=kind, error=told, final=False))
        finally:
            await remote.close()

    async def _dial_until_open(self) -> aiohttp.ClientWebSocketResponse[Any]:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_transient),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
            stop=tenacity.stop_after_delay(self._options.redial_s),
            reraise=True,
        ):
            with attempt:
                async with asyncio.timeout(self._options.dial_timeout_s):
                    return await self._dial()
        raise AssertionError

    def _end(self, kind: FailureKind, error: TunnelError) -> None:
        if self._ended:
            return
        self._ended = error
        for task in self._connections - {asyncio.current_task()}:
            task.cancel()
        self._on_failure(TunnelFailure(kind=kind, error=error, final=True))


def _is_final(error: BaseException) -> bool:
    if isinstance(error, AccessDenied) or getattr(error, "is_final", False):
        return True
    status = getattr(error, "status", 0) if isinstance(error, aiohttp.ClientResponseError) else 0
    return 400 <= status < 500 and status not in _WAITING


def _is_transient(error: BaseException) -> bool:
    known = isinstance(error, SharedPathwaysError | aiohttp.ClientError | OSError)
    return known and not _is_final(error)


async def _up(reader: asyncio.StreamReader, remote: aiohttp.ClientWebSocketResponse[Any]) -> None:
    while chunk := await reader.read(_CHUNK):
        await remote.send_bytes(bytes((DATA,)) + chunk)
    await remote.close()


async def _down(remote: aiohttp.ClientWebSocketResponse[Any], writer: asyncio.StreamWriter) -> None:
    channels = Channels()
    async for message in remote:
        if message.type is not aiohttp.WSMsgType.BINARY:
            break
        writer.write(channels.receive(memoryview(message.data)))
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()
