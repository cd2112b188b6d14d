"""A way to the API server that a test may cut at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator


class Relay:
    """Passes bytes on, until told otherwise. Use `relay`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut_at_next_answer = False
        self.swallow_answers = False
        self.was_cut = asyncio.Event()
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        # What was swallowed stays swallowed; later connections are as good as new.
        self.swallow_answers = False
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                up = group.create_task(self._pass_on(reader, to_server))
                await self._pass_back(from_server, writer)
                up.cancel()
        finally:
            for one in (writer, to_server):
                one.close()
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.cut_at_next_answer:
                    self.cut_at_next_answer = False
                    self.was_cut.set()
                    return
                if self.swallow_answers:
                    self.was_cut.set()
                    while await reader.read(65536):
                        pass
                    return
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def _accepting(made: Relay, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serves on a free port of loopback, which it yields."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await made.serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def relay(url: str) -> AsyncIterator[tuple[Relay, str]]:
    """Opens a relay to a server's loopback URL; yields it and its own URL."""
    made = Relay(int(url.rpartition(":")[2]))
    async with _accepting(made, None) as port:
        yield made, f"https://127.0.0.1:{port}"


def tls_before(port: int, context: ssl.SSLContext) -> contextlib.AbstractAsyncContextManager[int]:
    """Serves with TLS what listens on a port of loopback; yields its own port."""
    return _accepting(Relay(port), context)
