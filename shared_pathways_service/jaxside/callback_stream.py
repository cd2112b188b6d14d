"""The stream on which a proxy calls functions of this process. Needs grpcio, when it is opened.

Like the plug-in the file needs nothing else but the standard library: it is copied with it.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["CallbackStream", "NotServed"]

_PATH = "/shared_pathways_service.v1.Callbacks/Serve"
#: Seconds for the proxy to say that it serves callbacks.
_OPEN_S = 20.0
#: Bytes of a message that is read; the proxy sends 1 MiB of data in each.
_LARGEST = 8 << 20
_OPTIONS = (
    # Of this machine or through a tunnel: no proxy of the web stands between.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", -1),
    # The arrays of one process: not shared with channels of others.
    ("grpc.use_local_subchannel_pool", 1),
)


class NotServed(Exception):  # noqa: N818 - a reason
    """The proxy does not serve callbacks, or cannot be reached; the text says why."""


class CallbackStream:
    """An open stream.

    Args:
      address: ``unix:/path`` or ``host:port``.
      token: What the proxy wants to see; None when it wants nothing.
      nonce: What the session named as ``sps_callbacks``.
      receive: Called with each message after the first, on a thread of the stream's.
      ended: Called once, on that thread, when the stream has ended without `close`.

    Raises:
      NotServed: As it says.
    """

    def __init__(
        self,
        address: str,
        token: str | None,
        nonce: bytes,
        receive: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        """Opens the stream."""
        try:
            grpc: Any = importlib.import_module("grpc")
        except ImportError as error:
            raise NotServed(
                "this Python has no grpcio, which callbacks need: pip install grpcio"
            ) from error
        self._rpc_error: type[Exception] = grpc.RpcError
        self._receive, self._ended = receive, ended
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_closed = False
        self._channel: Any = grpc.insecure_channel(address, list(_OPTIONS))
        metadata: list[tuple[str, str | bytes]] = [("sps-callbacks-bin", nonce)]
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        self._call: Any = self._channel.stream_stream(_PATH)(
            iter(self._outgoing.get, None), metadata=metadata
        )
        self._opened: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="sps-callbacks", daemon=True)
        self._thread.start()
        try:
            problem = self._opened.get(timeout=_OPEN_S)
        except queue.Empty:
            problem = f"it has not answered within {_OPEN_S:g} s"
        except BaseException:
            self.close()
            raise
        if problem:
            self.close()
            raise NotServed(problem)

    def send(self, message: bytes) -> None:
        """Sends a message, on any thread."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Ends the stream and its threads; again, it does nothing."""
        self._is_closed = True
        self._outgoing.put(None)
        self._call.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._channel.close()

    def _read(self) -> None:
        is_open = False
        try:
            for raw in self._call:
                if is_open:
                    self._receive(raw)
                else:
                    is_open = True
                    self._opened.put("")
                del raw
        except self._rpc_error:
            pass
        if not is_open:
            self._opened.put(self._reason())
        elif not self._is_closed:
            self._outgoing.put(None)
            with contextlib.suppress(Exception):
                self._channel.close()
            self._ended()

    def _reason(self) -> str:
        code, details = self._call.code(), self._call.details()
        if getattr(code, "name", "") == "UNIMPLEMENTED":
            return "the proxy is of an older version, which serves no callbacks"
        return f"the proxy does not serve them: {getattr(code, 'name', code)}: {details}"
