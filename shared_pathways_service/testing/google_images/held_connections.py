"""Relays a proxy's connections, and keeps those that their clients did not end properly.

A client that ends properly ends or resets its streams first, as JAX's does. If its process is
killed, or the network between is lost, its connection ends with open streams. By public sources the
images may then need a restart before another client is served: they have not noticed the end. So
the connection with the server behind stays open here.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

from shared_pathways_service.testing.google_images.http2_streams import OpenStreams

__all__ = ["relaying"]

_READ_BYTES: Final = 1 << 16
_Take = Callable[[bytes], None]


@contextlib.contextmanager
def relaying(host: str, port: int, server_port: int) -> Iterator[str]:
    """Relays to a server on this machine for the length of the block; yields ``host:port``.

    Args:
      host: The address to bind.
      port: The port to bind; 0: any free one.
      server_port: The server's port on the loopback interface.
    """
    with socket.create_server((host, port)) as listener:
        address = f"{host}:{listener.getsockname()[1]}"
        relay = _Relay(listener, server_port)
        try:
            yield address
        finally:
            relay.close()


class _Relay:
    def __init__(self, listener: socket.socket, server_port: int) -> None:
        self._listener = listener
        self._server_port = server_port
        self._lock = threading.Lock()
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def close(self) -> None:
        """Ends all connections, and waits for the threads."""
        with self._lock:
            self._closed = True
            ends = [self._listener, *self._sockets]
        for end in ends:
            _shut_down(end, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port))
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, server, self._remove)
        with self._lock:
            if self._closed:
                client.close()
                server.close()
                return
            self._sockets |= {client, server}
            for work in (connection.copy_from_client, connection.copy_from_server):
                thread = threading.Thread(target=work, name="relay")
                thread.start()
                self._threads.append(thread)

    def _remove(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._sockets -= {client, server}
        client.close()
        server.close()


class _Connection:
    """Copies in both directions, each on its thread; the last one calls `on_end`."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        on_end: Callable[[socket.socket, socket.socket], None],
    ) -> None:
        self._client = client
        self._server = server
        self._streams = OpenStreams()
        self._is_held = threading.Event()
        self._ended = threading.Barrier(2, lambda: on_end(client, server))

    def copy_from_client(self) -> None:
        """Copies to the server, whose connection stays if the client leaves open streams."""
        _copy(self._client, self._server, self._streams.take_from_client)
        if self._streams:
            self._is_held.set()
            self._answer()
        else:
            _shut_down(self._server, socket.SHUT_WR)
        self._ended.wait()

    def copy_from_server(self) -> None:
        """Copies to the client; of a held connection, reads until the server ends it."""
        _copy(self._server, self._client, self._take_from_server)
        _copy(self._server, None, self._take_from_server)
        _shut_down(self._client, socket.SHUT_RDWR)
        self._ended.wait()

    def _take_from_server(self, data: bytes) -> None:
        self._streams.take_from_server(data)
        if self._is_held.is_set():
            self._answer()

    def _answer(self) -> None:
        """Answers pings in the client's place: gRPC ends a connection with an unanswered one."""
        with contextlib.suppress(OSError):
            self._server.sendall(self._streams.take_answers())


def _copy(source: socket.socket, target: socket.socket | None, take: _Take) -> None:
    """Copies until the source ends or the target does not accept more; None: drops the bytes."""
    with contextlib.suppress(OSError):
        while data := source.recv(_READ_BYTES):
            take(data)
            if target is not None:
                target.sendall(data)


def _shut_down(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)
