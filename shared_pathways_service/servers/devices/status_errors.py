"""The status of an operation, as in the protocol: one of absl's codes and a text."""

from __future__ import annotations

import enum
import re

from shared_pathways_service.protocol.ifrt import status_pb2

__all__ = ["Code", "StatusError", "array_gone", "from_exception", "invalid_argument"]


class Code(enum.IntEnum):
    """absl's status codes; gRPC's have the same numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class StatusError(Exception):
    """An operation failed; the client gets code and message."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message

    def copy(self) -> StatusError:
        """Returns an equal error that was never raised.

        Use it to keep an error, or to raise one for several callers: an exception refers to all
        frames that it passed through, and these to arrays and requests.
        """
        return StatusError(self.code, self.message)

    def fill(self, status: status_pb2.StatusProto) -> None:
        """Writes the status into a message."""
        status.code = self.code.value  # type: ignore[assignment]
        status.message = self.message


def invalid_argument(message: str) -> StatusError:
    """Returns the error for a request that the protocol or this proxy does not allow."""
    return StatusError(Code.INVALID_ARGUMENT, message)


def array_gone() -> StatusError:
    """Returns the error for the use of an array that was deleted, or whose memory was taken."""
    return invalid_argument("Array has been deleted or donated.")


_PREFIX = re.compile(r"([A-Z_]+): (.*)", re.DOTALL)


def from_exception(error: BaseException, process: str = "the proxy") -> StatusError:
    """Translates an error of XLA, numpy or Python; XLA's texts begin with the name of the code.

    Args:
      error: The error.
      process: The process that it was raised in, for messages.
    """
    if isinstance(error, StatusError):
        return error
    if isinstance(error, MemoryError):
        return StatusError(Code.RESOURCE_EXHAUSTED, f"{process} is out of memory: {error}")
    match = _PREFIX.match(str(error))
    if match and match[1] in Code.__members__ and match[1] != "OK":
        return StatusError(Code[match[1]], match[2])
    return StatusError(Code.INTERNAL, f"{type(error).__name__}: {error}")
