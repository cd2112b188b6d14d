"""The stream of a session's callbacks on a `CoreServer`: one thread reads and writes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from shared_pathways_service.servers.grpc_core.core_call import (
    RECEIVED,
    SENT,
    CoreCall,
    message_of,
)
from shared_pathways_service.servers.proxy.memory import HostCharge

__all__ = ["CoreOutbox"]


class CoreOutbox:
    """Messages to the client, sent when they are put, or when the one before is written."""

    def __init__(self, call: CoreCall) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._is_sending = False
        self._charge: HostCharge | None = None
        self._queue: deque[tuple[bytes, HostCharge | None]] = deque()

    def put(self, message: bytes, charge: HostCharge | None) -> None:
        """Sends a message; holds `charge` until it is sent."""
        with self._lock:
            if self._is_sending:
                self._queue.append((message, charge))
            else:
                self._send(message, charge)

    def end(self) -> None:
        """Ends the stream."""
        self._call.cancel()

    def serve(self, receive: Callable[[bytes], None]) -> None:
        """Handles the client's messages until it ends them, or the call is over."""
        call = self._call
        call.receive_soon()
        while True:
            event = call.next_event()
            if event.tag is SENT:
                self._sent()
            elif event.tag is RECEIVED:
                message = message_of(event)
                if message is None:
                    return
                receive(message)
                del message
                call.receive_soon()

    def _send(self, message: bytes, charge: HostCharge | None) -> None:
        self._is_sending, self._charge = True, charge
        self._call.send_soon(message, more_follows=bool(self._queue))

    def _sent(self) -> None:
        with self._lock:
            self._is_sending, self._charge = False, None
            if self._queue:
                self._send(*self._queue.popleft())
