"""How many connections a gRPC server takes, and how long one may be held for nothing.

A connection beyond their number is closed at once, which a client sees as UNAVAILABLE. What gRPC
counts, it does not tell: nothing of this is in a log.
"""

from __future__ import annotations

import dataclasses

from shared_pathways_service.flags.parsing import flag, positive_int, seconds
from shared_pathways_service.runtime import descriptors

__all__ = ["ConnectionOptions"]

#: Descriptors that a server needs beside its connections: files, pipes, its own calls.
_OWN_DESCRIPTORS = 192
_FOR_EVER_MS = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Flags of a server that others can reach; its options are derived from these."""

    max_connections: int = flag(
        1024,
        parse=positive_int,
        env="SPS_MAX_CONNECTIONS",
        help="Connections at a time; one more is closed at once. Never more than there are "
        "descriptors for.",
    )
    handshake_timeout_s: float = flag(
        20.0,
        parse=seconds,
        env="SPS_HANDSHAKE_TIMEOUT_S",
        help="Seconds for a new connection to begin as HTTP/2 does; then it is closed.",
    )
    idle_connection_s: float = flag(
        60.0,
        parse=seconds,
        env="SPS_IDLE_CONNECTION_S",
        help="Seconds after which a connection without a call is closed. (Clients of gRPC dial "
        "again when they call.)",
    )

    def connection_options(self) -> tuple[tuple[str, int], ...]:
        """Returns them as gRPC takes them.

        Raises:
          PreflightError: This process may have too few descriptors to serve anybody.
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
    """Returns them as gRPC takes them: at least one; 25 days and more are for ever."""
    return min(max(1, round(seconds * 1000)), _FOR_EVER_MS)
