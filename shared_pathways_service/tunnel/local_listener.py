"""Listens on a local socket: a private Unix socket, or a loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from shared_pathways_service.runtime.settings import private_directory
from shared_pathways_service.tunnel.places import socket_place

__all__ = ["LocalListener"]

_BACKLOG = 128
_ACCEPT_PAUSE_S = 0.1


class LocalListener:
    """Accepts local connections.

    Args:
      runtime_dir: The directory for the Unix socket; created for this user only if it is missing.
      local_port: None: a Unix socket; otherwise a loopback TCP port, 0 for any.
      on_accept: Takes over each connected, non-blocking socket.
    """

    def __init__(
        self,
        runtime_dir: Path,
        local_port: int | None,
        on_accept: Callable[[socket.socket], object],
    ) -> None:
        self._runtime_dir = runtime_dir
        self._local_port = local_port
        self._on_accept = on_accept
        self._stack = contextlib.ExitStack()
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> str:
        """Listens.

        Returns:
          ``unix:/path`` or ``127.0.0.1:port``.

        Raises:
          AccessDenied: `runtime_dir` is accessible to others.
          OSError: The port is taken.
        """
        listener, address = self._listen()
        listener.setblocking(False)
        self._stack.callback(listener.close)
        self._stack.callback(self._loop.remove_reader, listener.fileno())
        self._accept_from(listener)
        return address

    def close(self) -> None:
        """Stops listening, and removes the socket."""
        self._stack.close()
        if self._again is not None:
            self._again.cancel()
        # Not kept alive by us, nor anything that it refers to: channels of gRPC end with their last
        # reference, and their thread with them.
        self._on_accept = socket.socket.close

    def _listen(self) -> tuple[socket.socket, str]:
        if self._local_port is not None:
            listener = socket.create_server(("127.0.0.1", self._local_port), backlog=_BACKLOG)
            return listener, f"127.0.0.1:{listener.getsockname()[1]}"
        directory = private_directory(self._runtime_dir, "SPS_RUNTIME_DIR")
        path = self._stack.enter_context(socket_place(directory))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        return listener, f"unix:{path}"

    def _accept_from(self, listener: socket.socket) -> None:
        # Not `sock_accept`, which loses a connection when it is cancelled at the wrong moment.
        self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            local, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # Out of descriptors. The client waits until some are free.
            self._loop.remove_reader(listener.fileno())
            self._again = self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_from, listener)
            return
        local.setblocking(False)
        if local.family == socket.AF_INET:
            local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._on_accept(local)
