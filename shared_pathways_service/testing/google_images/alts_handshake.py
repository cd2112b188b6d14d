"""A port that treats plaintext clients as gRPC with ALTS does."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["serving_alts"]

#: A frame of ALTS begins with its length, 4 bytes in little-endian order, and is at most 1 MiB.
_MOST_BYTES: Final = 1 << 20


class _Handshake(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            head = self.request.recv(4)
            if head and int.from_bytes(head, "little") > _MOST_BYTES:
                return  # no frame: the handshake has failed
            self.request.recv(1)  # waits for more data, or for the client to disconnect


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextlib.contextmanager
def serving_alts(host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serves for the length of the block, by default on any free port; yields ``host:port``."""
    with _Server((host, port), _Handshake) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
