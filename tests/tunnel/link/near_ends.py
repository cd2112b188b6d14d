"""Near ends before a far end of any kind, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from shared_pathways_service.tunnel.link.near_end import LinkState, NearEnd, NearOptions
from tests.tunnel.link.heard import Heard
from tests.tunnel.link.rigs import TOKEN, Way

__all__ = ["NearRig", "a_near_end"]


class _Heard(Heard):
    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def link_changed(self, state: LinkState, reason: str) -> None:
        super().link_changed(state, reason)
        self.changed.set()


class NearRig:
    """A near end, its way to the far end, and the states that it reported."""

    def __init__(self, port: int, token: bytes, carriers: int) -> None:
        self.way = Way(port)
        self.heard = _Heard()
        self.states = self.heard.states
        options = NearOptions(carriers=carriers, max_backoff_s=0.2)
        self.near = NearEnd(self.way.dial, token, self.heard, options)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection through the link."""
        mine, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.near.accept(theirs)
        return await asyncio.open_connection(sock=mine)

    async def state(self, wanted: LinkState) -> str:
        """Waits for a state; returns its reason."""
        while True:
            self.heard.changed.clear()
            for state, reason in self.states:
                if state is wanted:
                    return reason
            await self.heard.changed.wait()


@contextlib.asynccontextmanager
async def a_near_end(
    port: int, *, token: bytes = TOKEN, carriers: int = 2
) -> AsyncIterator[NearRig]:
    """Starts a near end; it ends with the block."""
    rig = NearRig(port, token, carriers)
    rig.near.start()
    try:
        yield rig
    finally:
        await rig.near.close()


def listen(
    loop: asyncio.AbstractEventLoop, path: Path, accept: Callable[[socket.socket], None]
) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)

    def on_readable() -> None:
        local, _ = listener.accept()
        local.setblocking(False)
        accept(local)

    loop.add_reader(listener.fileno(), on_readable)
    return listener
