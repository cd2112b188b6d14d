"""Counters of a relay."""

from __future__ import annotations

import dataclasses

__all__ = ["LinkCounters", "TunnelCounters"]


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LinkCounters:
    """Counters of a link.

    Attributes:
      losses: How often no WebSocket was left.
      carriers: WebSockets that work.
      failed_dials: Dials that failed.
      replay_bytes: Bytes that are kept because the other end has not acknowledged them.
      early_answers: Lookups of values that the near end answered.
    """

    losses: int = 0
    carriers: int = 0
    failed_dials: int = 0
    replay_bytes: int = 0
    early_answers: int = 0
