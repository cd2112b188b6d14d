"""A way to the API server on which answers are lost: the request is carried out all the same."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.testing.testbed import Testbed

__all__ = ["LossyWay", "lossy_way"]

_CHUNK = 1 << 16


class LossyWay:
    """A relay on loopback that ends TLS, so that it sees what is asked for; use `lossy_way`.

    Args:
      testbed: Whose API server it leads to.
      to_lose: How requests begin whose first answer is lost, e.g. ``POST /api/v1/…``.

    Attributes:
      lost: Of these, what was lost so far.
    """

    def __init__(self, testbed: Testbed, to_lose: Sequence[str]) -> None:
        self.lost: list[str] = []
        self._to_lose = list(to_lose)
        self._port = int(testbed.server.rpartition(":")[2])
        self._outwards = client_tls(authority=testbed.authority.read_text())
        self._inwards = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inwards.load_cert_chain(testbed.directory / "tls.crt", testbed.directory / "tls.key")
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self, ready: Future[str], stop: asyncio.Event) -> None:
        """Serves until it is told to stop; tells its URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._inwards)
        ready.set_result(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await stop.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.ExitStack() as stack:
            stack.callback(writer.close)
            try:
                there = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._outwards)
            except OSError:
                return
            stack.callback(there[1].close)
            losing = asyncio.Event()
            ways = [
                asyncio.create_task(self._ask(reader, there[1], losing)),
                asyncio.create_task(self._answer(there[0], writer, losing)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            for wanted in self._to_lose:
                if data.startswith(wanted.encode()):
                    self._to_lose.remove(wanted)
                    self.lost.append(wanted)
                    losing.set()
                    break
            writer.write(data)
            await writer.drain()

    @staticmethod
    async def _answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            if losing.is_set():
                return
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def lossy_way(testbed: Testbed, to_lose: Sequence[str]) -> Iterator[tuple[LossyWay, str]]:
    """Opens a lossy way for the length of the block; gives it and its URL."""
    way = LossyWay(testbed, to_lose)
    ready: Future[str] = Future()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(way.run(ready, stop),))
    thread.start()
    try:
        yield way, ready.result(30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
