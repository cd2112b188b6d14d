"""Counters of a relay."""

from __future__ import annotations

import dataclasses

__all__ = ["TunnelCounters"]


@dataclasses.dataclass(kw_only=True, slots=True)
class TunnelCounters:
    """Counts connections and bytes; only the forwarding code changes them.

    Attributes:
      opened: Connections that were forwarded to the pod so far.
      connections: Open connections.
      redials: Dials after a failed one of the same connection.
      sent_bytes: Bytes from this machine to the pod, without framing.
      received_bytes: Bytes from the pod to this machine, without framing.
    """

    opened: int = 0
    connections: int = 0
    redials: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
