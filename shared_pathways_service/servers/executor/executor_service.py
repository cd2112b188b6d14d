"""What an executor's calls do: the stream of its proxy, and those of other executors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.auth import shows
from shared_pathways_service.protocol.chunks import Chunk, parsed_chunk, serialized_chunk
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_commands import Commands, Report

__all__ = [
    "DRIVE",
    "HEADER",
    "MOST_REPORTS",
    "PATIENCE_S",
    "TAKE",
    "CommandReader",
    "ExecutorService",
    "serialized",
]

#: The paths of the methods, and the header with the token.
DRIVE = "/shared_pathways_service.v1.Executors/Drive"
TAKE = "/shared_pathways_service.v1.Executors/Take"
HEADER = "authorization"
#: The most reports in one message.
MOST_REPORTS = 256
#: Seconds for which the report of a program waits for those of the next ones.
PATIENCE_S = 0.001

MakeCommands = Callable[[Report], Commands]


class ExecutorService:
    """Serves one proxy, and then no other; and executors that take what it has it offer.

    Args:
      make_commands: Makes the commands of a proxy, from what gets their reports.
      offers: What is offered to other executors.
      token: The token of the proxy; None: none is required.
      on_end: Called when the stream has ended.

    Attributes:
      make_commands: As above.
      offers: As above.
      exit_code: The exit code of the process: not 0 if a command could not be read, or a report not
        be sent.
    """

    def __init__(
        self,
        make_commands: MakeCommands,
        offers: Offers,
        token: str | None,
        on_end: Callable[[], None],
    ) -> None:
        self.make_commands = make_commands
        self.offers = offers
        self.exit_code = 0
        self._token = token
        self._on_end = on_end
        self._lock = threading.Lock()
        self._is_driven = False

    def begin(self, header: str) -> None:
        """Admits the proxy, with the header of its call.

        Raises:
          StatusError: UNAUTHENTICATED without its token, ALREADY_EXISTS for a second one.
        """
        if not shows(header, self._token):
            raise StatusError(Code.UNAUTHENTICATED, "the token is not this executor's")
        with self._lock:
            is_second, self._is_driven = self._is_driven, True
        if is_second:
            raise StatusError(Code.ALREADY_EXISTS, "this executor has its proxy")
        glog("I", "The proxy has connected")

    def end(self) -> None:
        """Ends the executor with its proxy's stream."""
        glog("I", "The proxy's stream has ended")
        self._on_end()

    def note_unreadable(self, error: Exception) -> None:
        """Notes that a command cannot be read, and so the stream ends."""
        glog("E", f"A command of the proxy cannot be read: {error!r}")
        self.exit_code = 1

    def note_unsent(self, error: BaseException) -> None:
        """Notes that a report cannot be made or sent, and so the stream ends."""
        glog("E", f"A report to the proxy cannot be sent: {error!r}")
        self.exit_code = 1

    def offered(self, request: bytes, header: str) -> Iterator[bytes]:
        """Yields messages of what is offered; the token is that of the transfer.

        Raises:
          StatusError: Nothing is offered so, or it cannot be sent.
        """
        asked = pb.TakeOffered.FromString(request)
        for data in self.offers.take(asked.transfer, header):
            yield pb.OfferedBytes(data=data).SerializeToString()


class CommandReader:
    """Has the messages of a proxy carried out. For one thread.

    Args:
      commands: Carries out commands.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        # The bytes of commands that follow, by their numbers.
        self._arrived: dict[int, list[memoryview]] = {}

    def take(self, message: bytes) -> None:
        """Begins the commands of a message; keeps the bytes of a command that follows."""
        chunk = parsed_chunk(message)
        if chunk is not None:
            self._arrived.setdefault(chunk.bytes_of, []).append(chunk.data)
            return
        arrived = self._arrived
        for command in pb.ExecutorCommands.FromString(message).commands:
            self._commands.take(command, arrived.pop(command.number, ()) if arrived else ())

    def close(self) -> None:
        """Begins no further command."""
        self._commands.close()


def serialized(message: list[pb.ExecutorReport] | Chunk) -> bytes:
    """Returns a message of reports, or of bytes."""
    if isinstance(message, Chunk):
        return serialized_chunk(message)
    return pb.ExecutorReports(reports=message).SerializeToString()
