"""What happens on a link, as one end reports it to its owner."""

from __future__ import annotations

import dataclasses
import enum

from shared_pathways_service.tunnel.link.link_frames import Buffer, LinkViolation

__all__ = ["Arrived", "Ended", "LinkEvent", "Opened", "Over", "Protocol", "Reset", "parse_protocol"]


class Protocol(enum.Enum):
    """The protocol inside a connection.

    Attributes:
      HTTP2: Frames of HTTP/2, which are passed on whole.
      BYTES: Any bytes, which are passed on as they come.
    """

    HTTP2 = b"h"
    BYTES = b"b"


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a connection."""

    connection: int
    protocol: Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """Whole messages arrived; report with `Link.delivered` when they are passed on."""

    connection: int
    payloads: list[Buffer]
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The peer sends no more on this connection."""

    connection: int


@dataclasses.dataclass(frozen=True, slots=True)
class Reset:
    """The connection is gone in both directions."""

    connection: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Over:
    """The peer ended the session."""

    reason: str


LinkEvent = Opened | Arrived | Ended | Reset | Over


def parse_protocol(payload: Buffer) -> Protocol:
    """Returns the protocol of an OPEN; raises `LinkViolation` if there is no such one."""
    try:
        return Protocol(bytes(payload))
    except ValueError as error:
        raise LinkViolation(f"there is no protocol {bytes(payload[:8])!r}") from error
