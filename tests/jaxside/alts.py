"""A port that behaves like gRPC with ALTS towards plaintext clients."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator

__all__ = ["serving_alts"]

#: A frame of ALTS begins with its length, 4 bytes in little-endian order, and is at most 1 MiB.
_MOST_BYTES = 1 << 20


class _Handshake(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        head = self.request.recv(4)
        if head and int.from_bytes(head, "little") > _MOST_BYTES:
            return  # no frame: the handshake has failed
        self.request.recv(1)  # waits for more, or for the client to leave


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@contextlib.contextmanager
def serving_alts() -> Iterator[str]:
    """Serves on a port of loopback; yields ``127.0.0.1:port``."""
    with _Server(("127.0.0.1", 0), _Handshake) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
