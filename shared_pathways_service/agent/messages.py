"""What client and agent say to each other: length-prefixed JSON objects on a socket pair.

Client to agent: ``start`` (first), ``cleanup`` (first, instead of it), ``logs``, ``close``.
Agent to client: ``hello`` (first), ``state`` (a whole `Snapshot` whenever it changed), ``proxy``
(what the client needs to reach it), ``event``, ``reply``, ``ended`` (last).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import Identity

__all__ = [
    "MAX_BYTES",
    "VERSION",
    "Decoder",
    "MessageError",
    "Start",
    "encode",
    "last_that_fit",
]

#: Of these messages: client and agent are of one installation unless it was upgraded under them.
VERSION = 3
#: Of one message.
MAX_BYTES = 4 << 20
_PREFIX = 4
#: Bytes for what else a message has beside its lines.
_ENVELOPE = 4096


class MessageError(Exception):
    """The other side does not speak as it should."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Returns the bytes of one message.

    Raises:
      MessageError: It is longer than `MAX_BYTES`.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BYTES:
        raise MessageError(f"a message of {len(body)} bytes, more than {MAX_BYTES}")
    return len(body).to_bytes(_PREFIX, "big") + body


def last_that_fit(lines: Sequence[str]) -> list[str]:
    """Returns the last lines of a log, as many as one message holds beside its other fields."""
    left = MAX_BYTES - _ENVELOPE
    first = len(lines)
    while first and (left := left - len(json.dumps(lines[first - 1])) - 1) >= 0:
        first -= 1
    return list(lines[first:])


class Decoder:
    """Makes messages of bytes, however they are cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Takes bytes in, and yields the messages that are complete.

        Raises:
          MessageError: What came is no message.
        """
        self._buffer += data
        while len(self._buffer) >= _PREFIX:
            size = int.from_bytes(self._buffer[:_PREFIX], "big")
            if size > MAX_BYTES:
                raise MessageError(f"a message of {size} bytes, more than {MAX_BYTES}")
            if len(self._buffer) < _PREFIX + size:
                return
            body = bytes(self._buffer[_PREFIX : _PREFIX + size])
            del self._buffer[: _PREFIX + size]
            yield _parse(body)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise MessageError("no JSON object with a type")
    return message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """All that the agent needs to run a session.

    Attributes:
      request: What the user asked for.
      session: UUID of the session; what is found under it belongs to it.
      owner: The process whose end ends the session.
      journal: The journal's directory.
      metrics_port: Where the agent serves its own to a scraper, 0 for any port; None: nowhere.
      metrics_address: The address of this machine that the port is of.
      delete_timeout_s: Seconds for the deletion, while somebody waits for it.
    """

    home: HomeChoice
    request: SessionRequest
    session: str
    owner: Identity
    journal: str
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    delete_timeout_s: float = 60.0

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "type": "start",
            "version": VERSION,
            "home": dataclasses.asdict(self.home),
            "request": self.request.to_json(),
            "owner": self.owner.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Start:
        """Makes what `to_json` described.

        Raises:
          MessageError: It is of another version, or not of this form.
        """
        if data.get("version") != VERSION:
            raise MessageError(
                f"the client speaks version {data.get('version')}, the agent {VERSION}: "
                "the package was exchanged while the program ran"
            )
        try:
            return cls(
                home=HomeChoice(**data["home"]),
                request=SessionRequest.from_json(data["request"]),
                session=str(data["session"]),
                owner=Identity.from_json(data["owner"]),
                journal=str(data["journal"]),
                metrics_port=data["metrics_port"],
                metrics_address=str(data["metrics_address"]),
                delete_timeout_s=float(data["delete_timeout_s"]),
            )
        except (KeyError, TypeError, InvalidRequestError) as error:
            raise MessageError(f"not a request: {error}") from error
