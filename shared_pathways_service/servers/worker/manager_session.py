"""Resource-manager (RM) session of one worker: registers it, sends heartbeats, runs executors."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from shared_pathways_service.api.validation import fitting_text
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.rmclient.blocking_stream import BlockingStream
from shared_pathways_service.rmclient.failures import Refusal
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.worker.executor_process import Command
from shared_pathways_service.servers.worker.host_executors import HostExecutors

__all__ = ["Session"]

# Later heartbeats than this are logged: the RM waits only so long for the next one.
_LATE_S = 5.0


class Session:
    """Keeps one worker registered, as one incarnation, during its life.

    Attributes:
      error: Why the session has ended by itself, e.g. as the RM refuses this worker; None: it
        has not.
    """

    def __init__(
        self,
        address: str,
        hello: pb.WorkerHello,
        token: str | None,
        *,
        beat_interval_s: float,
        executor_command: Command,
        executor_host: str,
        on_welcome: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        """Starts on a separate thread; the RM may set a shorter interval of heartbeats.

        Executors are started by `executor_command`, and bind the address `executor_host`. Before
        `on_refused` is called, `error` is set, and the session has ended or is to be closed.
        """
        self.error: SharedPathwaysError | None = None
        self._address = address
        self._hello = hello
        self._beat_interval_s = beat_interval_s
        self._on_welcome = on_welcome
        self._on_refused = on_refused
        self._first_welcome_at: int | None = None  # the last generation at the first welcome
        self._last_reason = ""
        self._stream: BlockingStream[pb.WorkerMessage, pb.WorkerInstruction] = BlockingStream(
            address, lambda stub: stub.WorkerSession, self, token=token, name="session"
        )
        self._executors = HostExecutors(
            executor_command, hello, executor_host, send=self._stream.send, on_unfit=self.on_failed
        )
        self._stream.start()

    def close(self) -> None:
        """Ends the executor, then deregisters the worker, or gives up if the RM does not answer."""
        self._executors.close()
        # (The RM refuses a longer reason, and tenants would not be told of it.)
        reason = fitting_text(str(self.error or "the worker was told to stop"))
        self._stream.close(pb.WorkerMessage(bye=pb.WorkerBye(reason=reason)))

    # ---- callbacks of the stream

    def greeting(self) -> pb.WorkerMessage:
        """Returns the hello."""
        hello = pb.WorkerHello(welcomed_at=self._first_welcome_at)
        hello.MergeFrom(self._hello)
        return pb.WorkerMessage(hello=hello)

    def on_message(self, message: pb.WorkerInstruction) -> None:
        """Starts heartbeats when the RM has registered the worker; carries out assignments."""
        kind = message.WhichOneof("instruction")
        if kind == "welcome":
            self._welcomed(message.welcome)
        elif kind == "assignment":
            self._executors.on_assignment(message.assignment)

    def on_end(self) -> None:
        """Stops reports on executors; heartbeats end with their stream."""
        self._executors.on_end()

    def on_lost(self, reason: str, pause_s: float) -> None:  # noqa: ARG002 - StreamOwner's
        """Logs the reason, unless it is the same as before."""
        if reason != self._last_reason:
            glog("W", f"resource manager at {self._address}: {reason}; trying again")
            self._last_reason = reason

    def on_refused(self, refusal: Refusal) -> None:
        """Ends the session."""
        self.error = refusal.error
        self._on_refused()

    def on_failed(self, reason: str) -> None:
        """Ends the session."""
        self.error = SharedPathwaysError(reason)
        self._on_refused()

    def is_ending(self) -> bool:
        """Returns False: only `close` ends it."""
        return False

    # ---- internal

    def _welcomed(self, welcome: pb.WorkerWelcome) -> None:
        self._last_reason = ""
        if self._first_welcome_at is None:
            self._first_welcome_at = welcome.last_generation
        self._beat_interval_s = min(welcome.beat_interval_s, self._beat_interval_s)
        sequence = itertools.count(1)
        self._stream.beat_every(
            self._beat_interval_s, lambda late_s: self._beat(next(sequence), late_s)
        )
        self._executors.on_welcome(welcome)
        self._on_welcome()

    def _beat(self, sequence: int, late_s: float) -> pb.WorkerMessage:
        if late_s > _LATE_S:
            glog("W", f"A heartbeat is {late_s:.1f} s late: this process did not run")
        beat = pb.WorkerBeat(sequence=sequence, usage=self._executors.usage())
        return pb.WorkerMessage(beat=beat)
