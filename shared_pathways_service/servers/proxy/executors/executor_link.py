"""The stream of commands to one executor, and of its reports."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.chunks import Chunk, parsed_chunk, serialized_chunk
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.byte_budget import ByteBudget
from shared_pathways_service.servers.proxy.executors.command_messages import (
    Freed,
    framed,
    joined,
    size_of,
)
from shared_pathways_service.servers.proxy.executors.executor_streams import OpenStream
from shared_pathways_service.servers.proxy.executors.public_stream import StreamBrokenError
from shared_pathways_service.servers.serving.flushing import Flusher
from shared_pathways_service.servers.serving.send_queue import SendQueue

__all__ = ["PROGRAMS_ENOUGH", "PROGRAMS_TOGETHER", "ExecutorLink", "ask_all", "new_number"]

#: Numbers of clients, arrays, programs, runners and transfers in executors.
new_number = itertools.count(1).__next__

_orders = itertools.count()
_new_command = itertools.count(1).__next__
#: Sends commands to several executors in one order: a program over them hangs if another one comes
#: before it on one executor and after it on another.
_IN_ONE_ORDER = threading.Lock()

_METHOD = "/shared_pathways_service.v1.Executors/Drive"
#: The most commands in one message.
_MOST = 128
#: Seconds after which an executor whose host does not answer counts as lost: an interval and a
#: wait.
_KEEPALIVE_S = (5, 10)
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _KEEPALIVE_S[0] * 1000),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_S[1] * 1000),
    # Of other pings, which delay that of the keepalive; gRPC's default is 60 s.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_S[1] * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # An executor has no proxy between.
    ("grpc.enable_http_proxy", 0),
    # It takes one call for each connection.
    ("grpc.use_local_subchannel_pool", 1),
)

#: An executor with so many programs does not need the next one at once, which is then sent with
#: the next report, or with so many others.
PROGRAMS_ENOUGH = 4
PROGRAMS_TOGETHER = 16

_Future = futures.Future[pb.ExecutorReport]
#: Gets the report of a program, or its error.
OnEnd = Callable[[pb.ExecutorReport | StatusError], None]


class ExecutorLink:
    """Sends commands in the order of the calls; several form a message while others wait.

    Only bytes of large arrays, each with the command behind them, wait for all other commands: so
    hosts meet, and open clients, within their deadlines. What depends on such a command, also what
    frees what it makes, must be sent once it has its report.

    All waits end with the executor: it counts as lost when its stream breaks, or when its host does
    not answer for some seconds.

    Args:
      token: The executor's token; None: it requires none.
      open_stream: Opens the stream.
      flusher: Sends what is freed when no command follows.
      on_lost: Called when the executor is lost, with the reason. It may find out more for some
        seconds: what waits for the executor fails only afterwards.
      on_broken: Called with the number of a client that runs no more programs over several hosts,
        before those that wait for the report of the program.

    Attributes:
      address: The executor's address.
      sent_bytes: The bytes of all commands so far.
      received_bytes: The bytes of all reports so far.
      uploads: Bounds the bytes of arrays on their way to the executor.
      fetches: Bounds those on their way from it, until they are used here.
      order: The order of links in which to take of several budgets.
    """

    def __init__(
        self,
        address: str,
        token: str | None,
        open_stream: OpenStream,
        flusher: Flusher,
        *,
        on_lost: Callable[[ExecutorLink, str], None],
        on_broken: Callable[[int], None],
    ) -> None:
        self.address = address
        self.sent_bytes = 0
        self.received_bytes = 0
        self.uploads = ByteBudget()
        self.fetches = ByteBudget()
        self.order = next(_orders)
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._flusher = flusher
        self._is_flush_due = False
        # Commands, as they are sent, and what is to be freed between them.
        self._sending: SendQueue[bytes | Freed] = SendQueue(_MOST, size_of)
        self._lock = threading.Lock()
        # By the number of the command.
        self._waiting: dict[int, _Asked] = {}
        # The programs of each client that have not ended; and those that were queued since the last
        # wake of the stream, of which some may have been sent.
        self._running: Counter[int] = Counter()
        self._unsent = 0
        self._lost: StatusError | None = None
        self._is_ending = False
        self._is_closed = False
        self._stream = open_stream(address, _METHOD, bearer(token), _OPTIONS, self._next_message)
        self._thread = threading.Thread(target=self._read, name="executor-reports", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> StatusError | None:
        """Why the executor is lost; None if it is not."""
        return self._lost

    def tell(self, command: pb.ExecutorCommand) -> None:
        """Sends a command whose failure is that of what it makes."""
        self._sending.put(framed(command))
        self._wake()

    def ask(
        self,
        command: pb.ExecutorCommand,
        *,
        sends: Iterator[memoryview] | None = None,
        receives: list[memoryview] | None = None,
    ) -> _Future:
        """Sends a command; the future gets its report, or a StatusError.

        Args:
          command: The command, which is given a number.
          sends: Bytes to send before it; other commands pass them, and so this one.
          receives: Gets the bytes that come before the report.
        """
        command.number = _new_command()
        future: _Future = futures.Future()
        asked = _Asked(command.client, future, receives=receives)
        self._add(command.number, asked, framed(command), sends)
        self._wake()
        return future

    def start(self, command: pb.ExecutorCommand, on_end: OnEnd) -> None:
        """Sends a command that runs a program; if the executor has enough of them, with others.

        Args:
          command: The command, which is given a number.
          on_end: Called on the thread that reads reports, or now.
        """
        command.number = _new_command()
        client = command.client
        self._add(command.number, _Asked(client, on_end=on_end), framed(command))
        self._unsent += 1
        # (In this order: what ends from now on sends it.)
        if self._running[client] <= PROGRAMS_ENOUGH or self._unsent >= PROGRAMS_TOGETHER:
            self._wake()

    def free(self, kind: str, number: int) -> None:
        """Frees a number after all commands so far. Finalizers call it: it does not block."""
        self._sending.put((kind, number))
        # (A message for each would cost as much as one for a command.)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._flusher.flush_soon(self)

    def flush(self) -> None:
        """Sends what was freed."""
        self._is_flush_due = False
        self._wake()

    def await_loss(self) -> None:
        """Returns once its loss was reported, if its stream has ended; otherwise at once."""
        if self._is_ending:
            self._thread.join()

    def close(self) -> None:
        """Ends the stream, and so the executor; nothing is reported as lost."""
        self._is_closed = True
        self._stream.cancel()
        self._thread.join(timeouts.THREAD_END.s)

    def _wake(self) -> None:
        self._unsent = 0
        if not self._is_ending:
            self._stream.wake()

    def _add(
        self,
        number: int,
        asked: _Asked,
        command: bytes,
        sends: Iterator[memoryview] | None = None,
    ) -> None:
        """Queues a command, which is sent after the next wake of the stream."""
        with self._lock:
            lost = self._lost
            if lost is None:
                self._waiting[number] = asked
                if asked.on_end is not None:
                    self._running[asked.client] += 1
                if sends is None:
                    self._sending.put(command)
                else:
                    self._sending.put_behind(number, sends, command)
        if lost is not None:
            _settle(asked, lost.copy())

    def _next_message(self) -> bytes | None:
        message = self._sending.next_message()
        if message is None:
            return None
        data = serialized_chunk(message) if isinstance(message, Chunk) else joined(message)
        self.sent_bytes += len(data)
        return data

    def _read(self) -> None:
        reason = "the executor has ended"
        try:
            for data in self._stream.receive():
                self._handle(data)
                # (Not while it waits for the next one.)
                del data
        except StreamBrokenError as error:
            reason = f"the executor at {self.address} is gone: {error}"
        except Exception as error:  # noqa: BLE001 - otherwise all would wait for ever
            reason = f"a report of the executor at {self.address} cannot be handled: {error}"
        self._is_ending = True
        with contextlib.suppress(Exception):  # whatever it is, the end must be reported
            self._stream.close()
        try:
            # Before those that wait, so that what fails then is said to be lost with its slice.
            if not self._is_closed:
                self._on_lost(self, reason)
        finally:
            with self._lock:
                self._lost = lost = StatusError(Code.DATA_LOSS, reason)
                left, self._waiting = self._waiting, {}
            # (What finalizers free from now on is gone already.)
            self._sending.close()
            self.uploads.end(lost)
            self.fetches.end(lost)
            for asked in left.values():
                _settle(asked, lost.copy())

    def _handle(self, message: bytes) -> None:
        self.received_bytes += len(message)
        if chunk := parsed_chunk(message):
            self._receive(chunk)
            return
        for report in pb.ExecutorReports.FromString(message).reports:
            self._take(report)
        if self._unsent:
            self._wake()

    def _receive(self, chunk: Chunk) -> None:
        with self._lock:
            asked = self._waiting.get(chunk.bytes_of)
        if asked is not None and asked.receives is not None:
            asked.receives.append(chunk.data)

    def _take(self, report: pb.ExecutorReport) -> None:
        with self._lock:
            asked = self._waiting.pop(report.number, None)
            if asked is None:
                return
            if asked.on_end is not None:
                self._running[asked.client] -= 1
        if report.is_broken:
            self._on_broken(asked.client)
        if report.code:
            _settle(asked, StatusError(Code(report.code), report.message))
        else:
            _settle(asked, report)


class _Asked(NamedTuple):
    """A command whose report is awaited.

    Attributes:
      client: Its client.
      future: Gets the report.
      on_end: Gets the end of a program, instead.
      receives: Gets the bytes before the report.
    """

    client: int
    future: _Future | None = None
    on_end: OnEnd | None = None
    receives: list[memoryview] | None = None


def ask_all(links: Sequence[ExecutorLink], command: pb.ExecutorCommand) -> list[_Future]:
    """Sends a command to several executors; it comes in the same order as others to all of them."""
    command.number = _new_command()
    data = framed(command)
    made: list[_Future] = [futures.Future() for _ in links]
    with _IN_ONE_ORDER:
        for link, future in zip(links, made, strict=True):
            link._add(command.number, _Asked(command.client, future), data)  # noqa: SLF001
    for link in links:
        link.flush()
    return made


def _settle(asked: _Asked, end: pb.ExecutorReport | StatusError) -> None:
    if asked.on_end is not None:
        try:
            asked.on_end(end)
        except Exception as error:  # noqa: BLE001 - others wait for theirs, as with futures
            glog("E", f"the end of a program cannot be handled: {type(error).__name__}: {error}")
        return
    assert asked.future is not None, "a command that is no program has one"
    if isinstance(end, StatusError):
        asked.future.set_exception(end)
    else:
        asked.future.set_result(end)
