"""A way to the API server on which requests are delayed or refused, or answers are lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from harness.deadlines import deadline
from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.testing.testbed import Testbed

__all__ = ["Fault", "faulty_way"]

_CHUNK = 1 << 16
_HEAD_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one request.

    Attributes:
      delay_s: Seconds for which it is held back.
      status: The answer instead of the API server's, which does not get the request; 0: its own.
      retry_after_s: The answer's header ``Retry-After``; None: without one.
      loses_answer: Whether the connection breaks instead of the API server's answer.
    """

    delay_s: float = 0.0
    status: int = 0
    retry_after_s: int | None = None
    loses_answer: bool = False


#: Says what happens to a request, by its method and its path with the query.
Judge = Callable[[str, str], Fault | None]


class _Way:
    """A relay on loopback that ends TLS, so that it sees what is asked for."""

    def __init__(self, testbed: Testbed, judge: Judge, host: str) -> None:
        self._judge = judge
        self._host = host
        self._port = int(testbed.server.rpartition(":")[2])
        self._outwards = client_tls(authority=testbed.authority.read_text())
        self._inwards = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inwards.load_cert_chain(testbed.directory / "tls.crt", testbed.directory / "tls.key")
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self, ready: Future[str], stop: asyncio.Event) -> None:
        """Serves until it is told to stop; tells its URL."""
        server = await asyncio.start_server(
            self._serve, self._host, 0, ssl=self._inwards, limit=_HEAD_BYTES
        )
        host = f"[{self._host}]" if ":" in self._host else self._host
        ready.set_result(f"https://{host}:{server.sockets[0].getsockname()[1]}")
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
                asyncio.create_task(self._ask(reader, there[1], writer, losing)),
                asyncio.create_task(self._answer(there[0], writer, losing)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        there: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        losing: asyncio.Event,
    ) -> None:
        """Passes requests on, one after the other: clients of HTTP/1.1 wait for each answer."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split(" ")
                fault = self._judge(method, path) or Fault()
                await asyncio.sleep(fault.delay_s)
                if fault.status:
                    back.write(_refusal(fault))
                    await back.drain()
                    continue
                if fault.loses_answer:
                    losing.set()
                there.write(head + body)
                await there.drain()
                if "upgrade" in headers:
                    break
        while data := await reader.read(_CHUNK):
            there.write(data)
            await there.drain()

    @staticmethod
    async def _answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK):
            if losing.is_set():
                return
            writer.write(data)
            await writer.drain()


def _refusal(fault: Fault) -> bytes:
    """Returns the answer of a load balancer or an overloaded API server: text, not a Status."""
    text = f"injected {fault.status}\n"
    lines = [f"HTTP/1.1 {fault.status} Injected", f"Content-Length: {len(text)}"]
    if fault.retry_after_s is not None:
        lines.append(f"Retry-After: {fault.retry_after_s}")
    return "\r\n".join([*lines, "", text]).encode()


@contextlib.contextmanager
def faulty_way(testbed: Testbed, judge: Judge, *, host: str = LOOPBACK) -> Iterator[str]:
    """Opens such a way for the length of the block; yields its URL.

    Args:
      testbed: Whose API server it leads to.
      judge: Called for each request, on a thread of the way's own.
      host: Its address.
    """
    way = _Way(testbed, judge, host)
    ready: Future[str] = Future()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(way.run(ready, stop),))
    thread.start()
    try:
        yield ready.result(deadline(30.0))
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
