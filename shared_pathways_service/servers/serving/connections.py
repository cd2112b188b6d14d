"""Limits the connections of a gRPC server, and closes unused ones.

A connection above the limit is closed at once, which a client sees as UNAVAILABLE. gRPC does not
report its counts, so no log mentions this.
"""

from __future__ import annotations

import dataclasses

from shared_pathways_service.flags.parsing import flag, positive_int, seconds
from shared_pathways_service.runtime import descriptors

__all__ = ["ConnectionOptions"]

#: File descriptors that a server needs in addition to its connections: files, pipes, own calls.
_OWN_DESCRIPTORS = 192
_NO_LIMIT_MS = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Flags of a server that listens for connections; options of such servers derive from it."""

    max_connections: int = flag(
        1024,
        parse=positive_int,
        env="SPS_MAX_CONNECTIONS",
        help="Limit the concurrent connections; one more is closed at once. The limit of file "
        "descriptors may lower it.",
    )
    handshake_timeout_s: float = flag(
        20.0,
        parse=seconds,
        env="SPS_HANDSHAKE_TIMEOUT_S",
        help="Close a new connection that does not start with HTTP/2 in so long.",
    )
    idle_connection_s: float = flag(
        60.0,
        parse=seconds,
        env="SPS_IDLE_CONNECTION_S",
        help="Close a connection after so long without a call. (gRPC's clients reconnect for the "
        "next call.)",
    )

    def connection_options(self) -> tuple[tuple[str, int], ...]:
        """Returns the flags as options of a gRPC server.

        Raises:
          PreflightError: The limit of file descriptors is too low for a server.
        """
        descriptors.check_limit()
        room = descriptors.limit()
        most = self.max_connections
        if room is not None:
            most = min(most, room - _OWN_DESCRIPTORS)
        return (
            ("grpc.max_allowed_incoming_connections", most),
            ("grpc.server_handshake_timeout_ms", _milliseconds(self.handshake_timeout_s)),
            ("grpc.max_connection_idle_ms", _milliseconds(self.idle_connection_s)),
        )


def _milliseconds(seconds: float) -> int:
    """Converts seconds to gRPC's milliseconds: at least 1; 25 days and more are no limit."""
    return min(max(1, round(seconds * 1000)), _NO_LIMIT_MS)
