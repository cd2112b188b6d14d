"""A stream to a resource manager that one thread keeps open, by gRPC's blocking API.

Not by its asyncio API, where a message that crosses a refusal replaces the refusal's status by
INTERNAL: the client could not distinguish the refusal from a broken stream.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import grpc

from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.rmclient.channels import STREAM_CHANNEL
from shared_pathways_service.rmclient.failures import Refusal, is_final, reason_of, translate
from shared_pathways_service.rmclient.outgoing import Outgoing
from shared_pathways_service.runtime.backoff import Backoff
from shared_pathways_service.runtime.glog import glog

__all__ = ["BlockingStream", "StreamOwner"]

Sent = TypeVar("Sent")
Received = TypeVar("Received")
_Sent_co = TypeVar("_Sent_co", covariant=True)
_Received_contra = TypeVar("_Received_contra", contravariant=True)

#: Streams in a row that end because a message cannot be handled here, each this soon (seconds),
#: before the stream is given up: what fails for certain is sent at the beginning of each.
_MOST_FAILURES, _SOON_S = 10, 60.0


class StreamOwner(Protocol[_Sent_co, _Received_contra]):
    """Makes the messages and handles what happens, on the stream's thread."""

    def greeting(self) -> _Sent_co:
        """Returns the first message of each stream."""

    def on_message(self, message: _Received_contra) -> None:
        """Handles a message."""

    def on_end(self) -> None:
        """Handles the end of one stream, whatever its cause."""

    def on_lost(self, reason: str, pause_s: float) -> None:
        """Handles that another stream will be opened after a pause."""

    def on_refused(self, refusal: Refusal) -> None:
        """Handles a final answer; no other stream is opened."""

    def on_failed(self, reason: str) -> None:
        """Handles that messages cannot be handled here; no other stream is opened."""

    def is_ending(self) -> bool:
        """Returns whether no other stream is wanted."""


class BlockingStream(Generic[Sent, Received]):
    """Keeps a stream open until it is closed or refused. Begins with `start`.

    Args:
      address: The resource manager's: ``host:port`` or ``unix:/path``.
      method: The stub's method for the stream.
      owner: Makes the messages, and handles what happens.
      token: Sent to the resource manager; None: none.
      name: The thread's.
    """

    def __init__(
        self,
        address: str,
        method: Callable[[pb_grpc.ResourceManagerStub], Callable[..., Iterator[Received]]],
        owner: StreamOwner[Sent, Received],
        *,
        token: str | None,
        name: str,
    ) -> None:
        self._address = address
        self._method = method
        self._owner = owner
        self._metadata = bearer(token)
        self._backoff = Backoff()
        self._failures = 0
        self._closing = threading.Event()
        # Guards the two below, and that nothing is opened once `_closing` is set.
        self._lock = threading.Lock()
        self._outgoing: Outgoing[Sent] | None = None
        self._channel: grpc.Channel | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins to call the resource manager."""
        self._thread.start()

    def send(self, message: Sent) -> None:
        """Sends a message on the stream that is open; without one it is dropped."""
        with self._lock:
            if self._outgoing is not None:
                self._outgoing.put(message)

    def beat_every(self, interval_s: float, make: Callable[[float], Sent]) -> None:
        """Sends heartbeats on the stream that is open; see `Outgoing.beat_every`."""
        with self._lock:
            if self._outgoing is not None:
                self._outgoing.beat_every(interval_s, make)

    def close(self, farewell: Sent) -> None:
        """Ends the stream with a last message, or without where that is not received in time."""
        with self._lock:
            self._closing.set()
            if self._outgoing is not None:
                self._outgoing.put(farewell)
                self._outgoing.end()
        if not self._thread.is_alive():
            return
        self._thread.join(timeouts.FAREWELL.s)
        with self._lock:
            channel = self._channel
        if channel is not None:
            channel.close()
        self.join(timeouts.THREAD_END.s)

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread's end; returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing.is_set():
            reason = self._keep_one_stream()
            if reason is None or self._closing.is_set() or self._owner.is_ending():
                return
            pause = self._backoff.next_pause_s()
            self._owner.on_lost(reason, pause)
            self._closing.wait(pause)

    def _keep_one_stream(self) -> str | None:
        """Has one stream until it ends; returns why, or None if there is to be no other."""
        began = time.monotonic()
        try:
            self._exchange(self._owner.greeting())
            reason = "it ended the stream"
        except grpc.RpcError as error:
            reason = reason_of(error)
            if is_final(error) and not self._closing.is_set():
                self._owner.on_refused(
                    Refusal(
                        kind=error.code().name.lower(),
                        message=error.details() or "",
                        error=translate(error, self._address),
                    )
                )
                return None
        except Exception as error:  # noqa: BLE001 - otherwise the slices would be lost silently
            reason = f"{type(error).__name__}: {error}"
            if self._closing.is_set() or not self._tolerates(reason, began):
                return None
            self._backoff.use_longest()
            return reason
        finally:
            self._end_outgoing()
            self._owner.on_end()
        self._failures = 0
        return reason

    def _exchange(self, greeting: Sent) -> None:
        # A channel of its own: it does not wait, as an older one would, before it dials again.
        with grpc.insecure_channel(self._address, options=STREAM_CHANNEL) as channel:
            with self._lock:
                if self._closing.is_set():
                    return
                # Each has its own messages: those that an older stream did not send are obsolete.
                outgoing = self._outgoing = Outgoing(greeting)
                self._channel = channel
            call = self._method(pb_grpc.ResourceManagerStub(channel))
            for message in call(iter(outgoing), metadata=self._metadata):
                self._backoff.reset()
                self._owner.on_message(message)

    def _end_outgoing(self) -> None:
        with self._lock:
            if self._outgoing is not None:
                self._outgoing.end()
            self._outgoing = self._channel = None

    def _tolerates(self, failure: str, began: float) -> bool:
        """Counts a failure to handle a message here; returns whether to try once more."""
        if time.monotonic() - began > _SOON_S:
            self._failures = 0
        self._failures += 1
        if self._failures == 1:
            glog("E", f"A message of the RM cannot be handled:\n{traceback.format_exc()}")
        if self._failures < _MOST_FAILURES:
            return True
        self._owner.on_failed(
            f"what the resource manager says failed here {self._failures} times: {failure}"
        )
        return False
