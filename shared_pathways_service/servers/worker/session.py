"""The worker's stream to the resource manager (RM): hello, beats, and again when it breaks.

The blocking API of gRPC: in its asyncio API a beat that crosses the RM's refusal would replace the
refusal's status by INTERNAL, and the worker could not tell it from a broken stream.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.status import error_of
from shared_pathways_service.runtime.glog import glog

__all__ = ["Session"]

# Answers that another try would not change.
_FINAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)

# Short: a restarted RM grants nothing until its workers are back.
_BACKOFF_FIRST_S = 0.1
_BACKOFF_LAST_S = 2.0
_BYE_S = 1.0
# A beat that is later than this is worth a line: the RM waits for beats only so long.
_LATE_S = 5.0

_CHANNEL_OPTIONS = (
    # A proxy for the web is none for the cluster's own addresses.
    ("grpc.enable_http_proxy", 0),
    # An RM whose machine is gone sends no end of stream.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # By default a dial to an address where nobody is any more is given up after 20 s: as long as a
    # restarted RM waits for its workers, whose name may lead to the old place at first.
    ("grpc.min_reconnect_backoff_ms", 5_000),
)


class Session:
    """Keeps one worker registered, with one incarnation, for as long as it lives.

    Attributes:
      error: Why the RM does not want this worker; None: it has not said so.
    """

    def __init__(
        self,
        address: str,
        hello: pb.WorkerHello,
        token: str | None,
        *,
        beat_interval_s: float,
        on_welcome: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        """Begins, on a thread of its own.

        Args:
          address: The RM's.
          hello: What it is told at the beginning of each stream.
          token: What it wants to be shown.
          beat_interval_s: The longest time between two beats; the RM may want a shorter one.
          on_welcome: Called whenever it has let the worker in.
          on_refused: Called when it does not want the worker; `error` is set, nothing goes on.
        """
        self.error: SharedPathwaysError | None = None
        self._address = address
        self._hello = hello
        self._token = token
        self._beat_interval_s = beat_interval_s
        self._on_welcome = on_welcome
        self._on_refused = on_refused
        self._news = threading.Condition()
        self._closing = False
        self._number = 0  # of the stream that is open
        self._welcomed = False  # on that stream
        self._welcomed_at: int | None = None  # the last generation at the first welcome of all
        self._channel: grpc.Channel | None = None
        self._thread = threading.Thread(target=self._run, name="session")
        self._thread.start()

    def close(self) -> None:
        """Says goodbye, or gives up when the RM does not hear it."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join(_BYE_S)
        with self._news:
            channel = self._channel
        if channel is not None:
            channel.close()
        self._thread.join()

    def _run(self) -> None:
        delay, last = _BACKOFF_FIRST_S, ""
        while True:
            broken = self._stream()
            if self._closing:
                return
            if broken is not None and broken.code() in _FINAL:
                self.error = error_of(broken, service="resource manager", address=self._address)
                self._on_refused()
                return
            if self._welcomed:
                delay, last = _BACKOFF_FIRST_S, ""
            why = f"{broken.code().name}: {broken.details()}" if broken else "the stream ended"
            if why != last:
                glog("W", f"resource manager at {self._address}: {why}; trying again")
                last = why
            with self._news:
                # Jitter spreads the workers of a service over time.
                pause = delay * random.uniform(0.5, 1.0)  # noqa: S311
                self._news.wait_for(lambda: self._closing, pause)
            delay = min(2 * delay, _BACKOFF_LAST_S)

    def _stream(self) -> grpc.RpcError | None:
        """Has one stream until it ends; returns what broke it."""
        # A channel of its own: none of an older one's waits before it dials again.
        with grpc.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
            with self._news:
                self._number += 1
                self._welcomed = False
                self._channel = channel
            stub = pb_grpc.ResourceManagerStub(channel)
            try:
                said = self._say(self._number)
                for instruction in stub.WorkerSession(said, metadata=bearer(self._token)):
                    if instruction.HasField("welcome"):
                        self._take_welcome(instruction.welcome)
            except grpc.RpcError as error:
                return error
            finally:
                with self._news:
                    self._number += 1
                    self._channel = None
                    self._news.notify_all()
        return None

    def _take_welcome(self, welcome: pb.WorkerWelcome) -> None:
        with self._news:
            self._beat_interval_s = min(welcome.beat_interval_s, self._beat_interval_s)
            self._welcomed = True
            if self._welcomed_at is None:
                self._welcomed_at = welcome.last_generation
            self._news.notify_all()
        self._on_welcome()

    def _say(self, number: int) -> Iterator[pb.WorkerMessage]:
        """Gives what is said on one stream; runs on a thread of gRPC's."""
        hello = pb.WorkerHello(welcomed_at=self._welcomed_at)
        hello.MergeFrom(self._hello)
        yield pb.WorkerMessage(hello=hello)
        with self._news:
            self._news.wait_for(lambda: self._welcomed or self._over(number))
        for sequence in itertools.count(1):
            with self._news:
                due = time.monotonic() + self._beat_interval_s
                self._news.wait_for(lambda: self._over(number), self._beat_interval_s)
            if (late := time.monotonic() - due) > _LATE_S:
                glog("W", f"A beat is {late:.1f} s late: this process stood still")
            if self._number != number:
                return
            if self._closing:
                reason = "the worker was told to stop"
                yield pb.WorkerMessage(bye=pb.WorkerBye(reason=reason))
                return
            yield pb.WorkerMessage(beat=pb.WorkerBeat(sequence=sequence))

    def _over(self, number: int) -> bool:
        return self._closing or self._number != number
