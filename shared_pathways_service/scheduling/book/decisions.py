"""Records of the core's decisions, which make up the history of a service.

A record that ends a holding or a wait has the time at which that began. So holdings and waits can
be computed from their ends alone, even if their beginnings are too old to be stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shared_pathways_service.events.proxy import ExecutorSlow, ExecutorSlowEnded, MemoryNearLimit
from shared_pathways_service.events.recorded_decisions import DecisionKind

__all__ = ["Decision", "sentence", "span"]


# (Not frozen, and made by position where an event makes several: either doubles what one costs.)
@dataclasses.dataclass(slots=True)
class Decision:
    """One decision; never changed once it is made.

    Attributes:
      time: When, by the core's clock: seconds since the epoch.
      kind: One of `KINDS`, or a kind of a newer version.
      tenant: The name of the tenant concerned; empty: none.
      user: The tenant's user, as stated by the tenant.
      team: The tenant's team, as stated by the tenant.
      slice: The physical slice; empty: none.
      virtual_index: The tenant's virtual slice; None: none.
      generation: The generation of the placement; 0: none.
      instance_type: The slice's type, or a tenant's request, e.g. ``tpuv6e:2x2=2,tpuv5e:2x2=1``.
      reason: The reason, in words.
      related: The name of the other tenant involved; empty: none.
      began: With a slice: when the holding that ended began. Without one: when the wait that ended
        began. None: neither ended.
    """

    time: float
    kind: str
    tenant: str = ""
    user: str = ""
    team: str = ""
    slice: str = ""
    virtual_index: int | None = None
    generation: int = 0
    instance_type: str = ""
    reason: str = ""
    related: str = ""
    began: float | None = None

    @property
    def duration_s(self) -> float | None:
        """The duration of the holding or wait that ended, in seconds; None: neither ended."""
        return None if self.began is None else max(0.0, self.time - self.began)


def sentence(decision: Decision) -> str:
    """Describes a decision in a sentence."""
    where = decision.slice
    if decision.virtual_index is not None:
        where += f" (its slice {decision.virtual_index})"
    said = _SENTENCES.get(decision.kind, "{kind}").format(
        kind=decision.kind,
        tenant=decision.tenant,
        where=where,
        slice=decision.slice,
        type=decision.instance_type,
        lasted=_lasted(decision.duration_s),
    )
    return f"{said}: {decision.reason}" if decision.reason else said


def _lasted(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 0.05:
        return " at once"
    return f" after {span(seconds)}"


def span(seconds: float) -> str:
    """Formats a duration for people, e.g. ``12 s``, ``4 min``, ``3.5 h``, ``2.1 d``."""
    for limit, unit, size in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172_800.0, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"


_SENTENCES: Mapping[str, str] = {
    DecisionKind.QUEUED: "{tenant} was queued",
    DecisionKind.PREEMPTED: "{tenant} was preempted, and waits for slices again",
    DecisionKind.IDLED: "{tenant} was idle, and its slices were taken back",
    DecisionKind.RUNNING: "{tenant} got its slices{lasted}",
    DecisionKind.REFUSED: "{tenant} was refused{lasted}",
    DecisionKind.TURNED_AWAY: "another proxy that called itself {tenant} was turned away",
    DecisionKind.RELEASED: "{tenant} was released{lasted}",
    DecisionKind.EXPIRED: "{tenant} was given up{lasted}",
    DecisionKind.FORGOTTEN: "{tenant} was forgotten",
    DecisionKind.ADOPTED: "{tenant} was believed to be running",
    DecisionKind.PLACED: "{tenant} was placed on {where}",
    DecisionKind.REPLACED: "{tenant} was moved to {where}",
    DecisionKind.CLAIMED: "{tenant} was believed to hold {where}",
    DecisionKind.UNPLACED: "{tenant} lost {where}{lasted}",
    DecisionKind.FREED: "{tenant} gave back {where}{lasted}",
    DecisionKind.EXECUTOR_STARTED: "the executors of {tenant} serve on {where}",
    DecisionKind.EXECUTOR_LOST: "{tenant} lost an executor on {where}",
    MemoryNearLimit.kind: "the proxy of {tenant} is near its memory limit",
    ExecutorSlow.kind: "an executor of {tenant} is slow",
    ExecutorSlowEnded.kind: "an executor of {tenant} is not slow any more",
    DecisionKind.STARTING: "{slice} starts",
    DecisionKind.READY: "{slice} is ready",
    DecisionKind.LOST: "{slice} is lost",
    DecisionKind.CORDONED: "{slice} is cordoned: no new tenant gets it",
    DecisionKind.DRAINING: "{slice} drains",
    DecisionKind.RESERVED: "{type} is reserved",
    DecisionKind.RESERVATION_STARTED: "the reservation of {type} begins",
    DecisionKind.RESERVATION_ENDED: "the reservation of {type} is over",
    DecisionKind.STARTED: "the resource manager started",
    DecisionKind.RECOVERING: "the resource manager recovers",
    DecisionKind.RECOVERED: "the resource manager has recovered",
}
