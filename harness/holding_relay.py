"""A relay of a local port that can hold connections in the middle of what they carry."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

__all__ = ["HoldingRelay", "holding_relay"]

_READ_BYTES = 64 << 10


class HoldingRelay:
    """Relays its first connection, and holds later ones after some bytes to the client.

    Attributes:
      address: The address for clients.
      is_held: Set when a later connection is held.
      is_asked: Set when the client sends something on the first connection; clear it before.
      go_on: Set it to have held connections go on.
      may_end: Set it so that the server's end of the first connection reaches the client.
    """

    def __init__(self, server_port: int, held_after: int) -> None:
        self._server_port = server_port
        self._held_after = held_after
        self.is_held = threading.Event()
        self.is_asked = threading.Event()
        self.go_on = threading.Event()
        self.may_end = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Ends all connections."""
        self._is_closed = True
        self.go_on.set()
        self.may_end.set()
        for each in (self._listening, *self._sockets):
            # (A thread that waits in a socket notices this, but not that it is closed.)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        is_first = True
        while not self._is_closed:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            may_end = self.may_end if is_first else None
            for arguments in (
                (client, server, self._ask if is_first else _nothing, None),
                (server, client, _nothing if is_first else self._hold, may_end),
            ):
                threading.Thread(target=_carry, args=arguments, daemon=True).start()
            is_first = False

    def _ask(self, _before: int, _carried: int) -> None:
        self.is_asked.set()

    def _hold(self, before: int, carried: int) -> None:
        if before <= self._held_after < carried:
            self.is_held.set()
            self.go_on.wait()


def _nothing(_before: int, _carried: int) -> None:
    pass


def _carry(
    source: socket.socket,
    target: socket.socket,
    before_more: Callable[[int, int], None],
    may_end: threading.Event | None,
) -> None:
    carried = 0
    with contextlib.suppress(OSError):
        while data := source.recv(_READ_BYTES):
            before_more(carried, carried + len(data))
            carried += len(data)
            # (What the other end no longer reads is carried to its end.)
            with contextlib.suppress(OSError):
                target.sendall(data)
    if may_end is not None:
        may_end.wait()
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def holding_relay(server_port: int, held_after: int) -> Iterator[HoldingRelay]:
    """Runs a relay of a local port.

    Args:
      server_port: The port.
      held_after: The bytes to the client after which connections but the first one are held.
    """
    relay = HoldingRelay(server_port, held_after)
    try:
        yield relay
    finally:
        relay.close()
