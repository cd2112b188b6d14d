"""The stream on which a proxy calls functions of this process. Needs grpcio when it is opened.

It otherwise needs the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .timeout_table import timeouts

__all__ = ["CallbackStream", "NotServed", "open_stream"]

_PATH = "/shared_pathways_service.v1.Callbacks/Serve"
#: Threads that wait to take over reading.
_SPARE = 2
#: Maximum size of a received message; the proxy sends 1 MiB of data in each.
_LARGEST = 8 << 20
_OPTIONS = (
    # Local or through a tunnel: HTTP proxies must not be used.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", -1),
    # Separate from other channels of the process.
    ("grpc.use_local_subchannel_pool", 1),
)


class NotServed(Exception):  # noqa: N818 - a reason
    """The proxy does not serve callbacks, or cannot be reached; the text gives the reason."""


def open_stream(
    grpc: Any,
    address: str,
    path: str,
    token: str | None,
    sent: Iterator[bytes],
    *metadata: tuple[str, str | bytes],
) -> tuple[Any, Any]:
    """Opens a stream to a proxy; returns its channel, which is to be closed, and its call.

    Args:
      grpc: The module, which is imported with the first stream.
      address: The proxy, as ``unix:/path`` or ``host:port``.
      path: The method.
      token: The proxy's token; None: none.
      sent: The messages to the proxy.
      metadata: What the method takes besides the token.
    """
    channel = grpc.insecure_channel(address, list(_OPTIONS))
    shown = [] if token is None else [("authorization", f"Bearer {token}")]
    return channel, channel.stream_stream(path)(sent, metadata=[*metadata, *shown])


class CallbackStream:
    """An open stream, and the threads that read it; raises NotServed if it cannot be opened.

    The thread that has read a call makes it, and another thread continues to read: calls run
    concurrently, as one may wait for another, without handing a call over. The proxy limits their
    number.

    `receive` is called with each message after the first, one at a time; it returns the function
    that this thread is to call next, and must not raise. `ended` is called once if the stream ends
    without `close`.
    """

    def __init__(
        self,
        address: str,
        token: str | None,
        nonce: bytes,
        receive: Callable[[bytes], Callable[[], object] | None],
        ended: Callable[[], None],
    ) -> None:
        try:
            grpc: Any = importlib.import_module("grpc")
        except ImportError as error:
            raise NotServed(
                "this Python has no grpcio, which callbacks need: pip install grpcio"
            ) from error
        self._rpc_error: type[Exception] = grpc.RpcError
        self._receive, self._ended = receive, ended
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_closed = self._is_over = False
        sent = iter(self._outgoing.get, None)
        self._channel, self._call = open_stream(
            grpc, address, _PATH, token, sent, ("sps-callbacks-bin", nonce)
        )
        self._lock = threading.Lock()
        # Held by the reading thread; other threads wait for it, or make a call.
        self._reading = threading.Lock()
        self._spare = 0
        self._threads: set[threading.Thread] = set()
        self._opened: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._start(self._open_and_run)
        try:
            problem = self._opened.get(timeout=timeouts.CALLBACKS_OPEN.s)
        except queue.Empty:
            problem = f"it has not answered within {timeouts.CALLBACKS_OPEN.s:g} s"
        except BaseException:
            self.close()
            raise
        if problem:
            self.close()
            raise NotServed(problem)

    def send(self, message: bytes) -> None:
        """Sends a message, from any thread."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Ends the stream and its threads; a thread that makes a call ends with it."""
        self._is_closed = True
        self._outgoing.put(None)
        self._call.cancel()
        with self._lock:
            threads = list(self._threads)
        deadline = timeouts.CALLBACKS_CLOSE.deadline()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(deadline.left_s)
        self._channel.close()

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="sps-callbacks", daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
            raise

    def _open_and_run(self) -> None:
        with self._reading:
            first = self._next()
        self._opened.put(self._reason() if first is None else "")
        if first is not None:
            self._run()
        else:
            self._finish()

    def _run(self) -> None:
        while True:
            with self._reading:
                work = self._next_work()
            if work is None:
                break
            is_read = self._have_another_read()
            work()
            if not is_read:
                continue
            with self._lock:
                if self._spare >= _SPARE:
                    break
                self._spare += 1
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _have_another_read(self) -> bool:
        """Lets another thread continue to read; False: there is none, and none can be started.

        From Python 3.12 on none can be started at the end of the process, where JAX waits for its
        callbacks.
        """
        with self._lock:
            if self._spare:
                self._spare -= 1
                return True
        try:
            self._start(self._run)
        except RuntimeError:
            return False
        return True

    def _next_work(self) -> Callable[[], object] | None:
        """Reads until there is something to call; None: the stream has ended."""
        while not self._is_over:
            raw = self._next()
            if raw is None:
                self._is_over = True
                self._hang_up()
            elif work := self._receive(raw):
                return work
        return None

    def _next(self) -> bytes | None:
        try:
            message: bytes | None = next(self._call, None)
        except self._rpc_error:
            return None
        return message

    def _hang_up(self) -> None:
        if not self._is_closed:
            self._outgoing.put(None)
            with contextlib.suppress(Exception):
                self._channel.close()
            self._ended()

    def _reason(self) -> str:
        code, details = self._call.code(), self._call.details()
        if getattr(code, "name", "") == "UNIMPLEMENTED":
            return "the proxy is of an older version, which does not serve callbacks"
        return f"the proxy does not serve them: {getattr(code, 'name', code)}: {details}"
