"""What a relay has forwarded since it was made."""

from __future__ import annotations

import dataclasses

__all__ = ["TunnelCounters"]


@dataclasses.dataclass(kw_only=True, slots=True)
class TunnelCounters:
    """Counts; only who forwards adds to them.

    Attributes:
      opened: Connections that a way to the pod was open for.
      connections: Of these, those that are open.
      redials: Dials that followed one that failed, for the same connection.
      sent_bytes: Taken from this machine's side for the pod; the user's bytes, without framing.
      received_bytes: Handed to this machine's side from the pod, likewise.
    """

    opened: int = 0
    connections: int = 0
    redials: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
