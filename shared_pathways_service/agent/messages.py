"""Messages between client and agent: length-prefixed JSON objects on a socket pair.

Client to agent: ``start`` (first), ``cleanup`` (first, instead of it), ``logs``, ``login`` (an
answer), ``close``.
Agent to client: ``hello`` (first), ``state`` (a whole `Snapshot` after each change), ``proxy`` (how
to reach the proxy), ``event``, ``reply``, ``login`` (a question), ``ended`` (last).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.kube.handed_over import HandedOver
from shared_pathways_service.runtime.processes import Identity

__all__ = [
    "MAX_BYTES",
    "VERSION",
    "Decoder",
    "MessageError",
    "Start",
    "encode",
    "handed_over_in",
    "last_that_fit",
]

#: Version of these messages; client and agent differ only after an upgrade while they run.
VERSION = 4
#: Maximum size of one message.
MAX_BYTES = 4 << 20
_PREFIX = 4
#: Bytes of a message reserved for fields other than its lines.
_ENVELOPE = 4096


class MessageError(Exception):
    """A message is invalid."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Returns the bytes of one message; raises MessageError above `MAX_BYTES`."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BYTES:
        raise MessageError(f"a message of {len(body)} bytes, more than {MAX_BYTES}")
    return len(body).to_bytes(_PREFIX, "big") + body


def last_that_fit(lines: Sequence[str]) -> list[str]:
    """Returns as many of a log's last lines as fit into one message."""
    left = MAX_BYTES - _ENVELOPE
    first = len(lines)
    while first and (left := left - len(json.dumps(lines[first - 1])) - 1) >= 0:
        first -= 1
    return list(lines[first:])


class Decoder:
    """Decodes messages from a stream of bytes in chunks."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Adds bytes, and yields the complete messages; raises MessageError if one is invalid."""
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
    """The agent's instructions for a session.

    Attributes:
      session: UUID of the session, which identifies its objects.
      owner: The process whose end ends the session.
      journal: The journal's directory.
      delete_timeout_s: Seconds for the deletion while the client waits for it.
      metrics_port: Port on which the agent serves its metrics, 0 for any port; None: no metrics.
      metrics_address: The address of this machine to bind for metrics.
      handed_over: The program's own access to the cluster, which is never written to a file.
    """

    home: HomeChoice
    request: SessionRequest
    session: str
    owner: Identity
    journal: str
    delete_timeout_s: float
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    handed_over: HandedOver | None = dataclasses.field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "type": "start",
            "version": VERSION,
            "home": dataclasses.asdict(self.home),
            "request": self.request.to_json(),
            "owner": self.owner.to_json(),
            "handed_over": dataclasses.asdict(self.handed_over) if self.handed_over else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Start:
        """Makes the instructions from plain data of `to_json`; raises MessageError."""
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
                handed_over=handed_over_in(data),
            )
        except (KeyError, TypeError, InvalidRequestError) as error:
            raise MessageError(f"not a request: {error}") from error


def handed_over_in(message: Mapping[str, Any]) -> HandedOver | None:
    """Returns the program's own access to the cluster that a message contains; None: none."""
    data = message.get("handed_over")
    return HandedOver.from_json(data) if data else None
