"""A relay before the testbed's API server that loses connections, or goes silent, on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from harness.processes import DEADLINE_S
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.kubeconfig import write_kubeconfig
from shared_pathways_service.testing.testbed.users import User

__all__ = ["MakeListener", "Way", "loopback_listener", "open_way"]

T = TypeVar("T")

_CHUNK = 1 << 18
_BACKLOG = 64
#: A socket that is closed with it sends RST.
_NO_LINGER = struct.pack("ii", 1, 0)

#: Returns a socket that is bound to this port of 127.0.0.1 (0: any), but does not listen.
MakeListener = Callable[[int], socket.socket]


def loopback_listener(port: int) -> socket.socket:
    """Returns a socket that is bound to a port of 127.0.0.1."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


class Way:
    """A relay of TCP connections, through which TLS passes; use `open_way`.

    Args:
      target: The port of 127.0.0.1 to which it leads.
      listener: Makes its sockets.

    Attributes:
      url: Its address.
    """

    def __init__(self, target: int, listener: MakeListener) -> None:
        self._target = target
        self._listener = listener
        # (Bound as long as this way exists, so that no other process gets the port meanwhile.)
        self._reserved = listener(0)
        self._port = int(self._reserved.getsockname()[1])
        self.url = f"https://127.0.0.1:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._delay_s = 0.0
        self._connections: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to relay."""
        self._thread.start()
        self.open()

    def stop(self) -> None:
        """Ends everything."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    def cut(self) -> int:
        """Resets every connection; returns how many there were."""
        return self._run(self._cut())

    def refuse(self) -> None:
        """Refuses connections from now on; those that exist continue."""
        self._run(self._refuse())

    def swallow(self) -> None:
        """Forwards nothing from now on; connections are accepted, and stay open."""
        self._run(self._swallow())

    def delay(self, seconds: float) -> None:
        """Forwards everything later by so much from now on, in both directions."""
        self._delay_s = seconds

    def open(self) -> None:
        """Accepts connections and forwards everything again."""
        self._run(self._open())

    def kubeconfig(self, namespace: Namespace, user: User) -> Path:
        """Writes the kubeconfig of a user whose requests take this way; returns its path."""
        testbed = namespace.testbed
        path = testbed.directory / f"{user.name}-way-{self._port}.kubeconfig"
        return write_kubeconfig(path, self.url, testbed.authority, user, namespace=namespace.name)

    # ---- in the loop's thread

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _open(self) -> None:
        self._flows.set()
        if self._server is None:
            listener = self._listener(self._port)
            self._server = await asyncio.start_server(self._serve, sock=listener, backlog=_BACKLOG)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _swallow(self) -> None:
        self._flows.clear()

    async def _cut(self) -> int:
        cut = list(self._connections)
        for connection in cut:
            connection.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        return len(cut)

    async def _stop(self) -> None:
        await self._refuse()
        await self._cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        with contextlib.ExitStack() as stack:
            stack.callback(self._connections.discard, task)
            stack.callback(_reset, writer)
            # (A cancellation is a cut: it must not reach the server's callback.)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._flows.wait()
                to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target)
                stack.callback(_reset, to_writer)
                await self._relay((reader, to_writer), (to_reader, writer))

    async def _relay(self, *directions: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Forwards in both directions until one of them ends."""
        tasks = [asyncio.create_task(self._forward(*each)) for each in directions]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await asyncio.sleep(self._delay_s)
            await self._flows.wait()
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


@contextlib.contextmanager
def open_way(namespace: Namespace, listener: MakeListener = loopback_listener) -> Iterator[Way]:
    """Runs a way to the testbed's API server for the length of the block."""
    way = Way(int(namespace.testbed.server.rpartition(":")[2]), listener)
    way.start()
    try:
        yield way
    finally:
        way.stop()
