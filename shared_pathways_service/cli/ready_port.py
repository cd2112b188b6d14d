"""A port that is open while a program runs, by which its pod counts as ready."""

from __future__ import annotations

import contextlib
import socket
import threading

from shared_pathways_service.runtime.listeners import listen

__all__ = ["ReadyPort"]

#: Seconds until the next connection is accepted after one failed, e.g. without a descriptor.
_PAUSE_S = 1.0


class ReadyPort:
    """Accepts every connection, and closes it at once, until it is closed itself.

    Args:
      address: An IP address of this pod.
      port: The port; 0: a free one.
      backlog: Connections that wait to be accepted.

    Raises:
      OSError: The port is in use.
    """

    def __init__(self, address: str, port: int, *, backlog: int = 128) -> None:
        self._listener = listen(address, port, backlog=backlog)
        self.port = int(self._listener.getsockname()[1])
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="sps-ready", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the port."""
        self._closed.set()
        # (To close a listener does not end an accept() of another thread.)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        # Connections that are not accepted would fill the queue, and then the kubelet's fail.
        while not self._closed.is_set():
            try:
                self._listener.accept()[0].close()
            except OSError:
                self._closed.wait(_PAUSE_S)
