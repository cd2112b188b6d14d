"""Decides when a head may take the Lease of its service, and how long it may act on it. Pure.

Times are seconds of a clock of this machine; no two machines' clocks are compared. Another head
takes the Lease only after it has seen it unchanged for its whole duration. The holder stops
earlier, counting from before its last renewal was sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["LeaseTerms", "Timing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of a Lease.

    Attributes:
      duration_s: Another head waits so long after the last renewal that it saw.
      renew_within_s: The holder stops so long after it sent its last successful renewal.
      retry_s: Pause between two requests.
    """

    duration_s: int
    renew_within_s: float
    retry_s: float

    @classmethod
    def of(cls, duration_s: int) -> Timing:
        """Returns times in the proportion that Kubernetes' own components use: 15, 10 and 2."""
        return cls(duration_s=duration_s, renew_within_s=duration_s / 1.5, retry_s=duration_s / 7.5)


class LeaseTerms:
    """The Lease as one head has seen it."""

    def __init__(self, identity: str, timing: Timing) -> None:
        self.identity = identity
        self._timing = timing
        self._seen = ""
        self._seen_at = 0.0
        self._until = 0.0

    def holder(self, lease: Mapping[str, Any]) -> str:
        """Returns the identity of a Lease's holder; empty: it is free."""
        return str((lease.get("spec") or {}).get("holderIdentity") or "")

    def may_take(self, lease: Mapping[str, Any], now: float) -> bool:
        """Whether this head may write itself into a Lease that it has just read."""
        version = str(lease["metadata"]["resourceVersion"])
        if version != self._seen:
            self._seen, self._seen_at = version, now
        if self.holder(lease) in ("", self.identity):
            return True
        its_duration = (lease.get("spec") or {}).get("leaseDurationSeconds")
        return now - self._seen_at > float(its_duration or self._timing.duration_s)

    def taken(self, lease: Mapping[str, Any], now_text: str) -> dict[str, Any]:
        """Returns a Lease that this head holds from now on; the same version must be replaced."""
        before = lease.get("spec") or {}
        spec = {
            **before,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.duration_s,
            "renewTime": now_text,
        }
        if self.holder(lease) != self.identity:
            spec["acquireTime"] = now_text
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        return {**lease, "spec": spec}

    def released(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a Lease that another head may take at once."""
        return {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}

    def renewed(self, asked_at: float) -> None:
        """Extends the term after a successful write, whose request was sent at `asked_at`."""
        self._until = asked_at + self._timing.renew_within_s

    def is_held(self, now: float) -> bool:
        """Whether this head may decide."""
        return now < self._until
