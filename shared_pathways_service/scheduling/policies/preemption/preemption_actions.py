"""The actions of the preemption policy: promises, notices, and preemptions."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.actions import vacate
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Notice, Pool, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker

__all__ = [
    "BeginPromise",
    "EndPromise",
    "GiveNotice",
    "KeepFree",
    "PostponeNotice",
    "Preempt",
    "QueueAgain",
    "SendNotice",
    "SendPlace",
    "WithdrawNotice",
]


@dataclasses.dataclass(eq=False, slots=True)
class KeepFree:
    """Reserves one free slice for a waiting tenant."""

    pool: Pool
    tenant: Tenant

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Reserves the first slice that is free for the tenant."""
        ledger.keep(ledger.take_free(self.pool, self.tenant), self.tenant)


@dataclasses.dataclass(eq=False, slots=True)
class BeginPromise:
    """Lets a waiting tenant step aside: slices are reserved for it until it can start."""

    tenant: Tenant

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Notes the promise."""
        ledger.begin_promise(self.tenant)


@dataclasses.dataclass(eq=False, slots=True)
class EndPromise:
    """Returns a waiting tenant to its line, and frees the slices reserved for it."""

    tenant: Tenant

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Ends the promise."""
        ledger.end_promise(self.tenant)
        ledger.release_kept(self.tenant)


@dataclasses.dataclass(eq=False, slots=True)
class GiveNotice:
    """Notes that the slices of a running tenant will be taken; the tenant is not notified yet."""

    victim: Tenant
    notice: Notice

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Sets the notice, replacing a former one."""
        ledger.give_notice(self.victim, self.notice)


@dataclasses.dataclass(eq=False, slots=True)
class PostponeNotice:
    """Postpones the preemption of a tenant under notice to a time at the earliest."""

    victim: Tenant
    until: float

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Changes the notice."""
        ledger.postpone(self.victim, self.until)


@dataclasses.dataclass(eq=False, slots=True)
class SendNotice:
    """Notifies a tenant that is under notice."""

    victim: Tenant

    def apply(self, _ledger: Ledger, speaker: Speaker) -> None:
        """Sends the notice."""
        speaker.preempting(self.victim)


@dataclasses.dataclass(eq=False, slots=True)
class SendPlace:
    """Notifies a waiting tenant of its place in the queue."""

    tenant: Tenant

    def apply(self, _ledger: Ledger, speaker: Speaker) -> None:
        """Sends the place."""
        speaker.queued(self.tenant)


@dataclasses.dataclass(eq=False, slots=True)
class WithdrawNotice:
    """Ends the notice of a tenant that keeps its slices.

    Attributes:
      was_notified: Whether the tenant was notified, and so must be notified again.
    """

    victim: Tenant
    was_notified: bool

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Clears the notice."""
        notice = self.victim.notice
        ledger.end_notice(self.victim)
        if notice is not None and self.was_notified:
            speaker.preempting_no_more(self.victim, notice)


@dataclasses.dataclass(eq=False, slots=True)
class Preempt:
    """Takes all slices from a tenant, which must then be queued again.

    Attributes:
      by: The name of the tenant that gets the slices.
    """

    victim: Tenant
    reason: str
    by: str

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Vacates the victim."""
        victim = self.victim
        if victim.notice is not None:
            victim.notice.is_due = True
        vacate(ledger, speaker, victim, self.reason, related=self.by)
        victim.preempted = victim.was_queued = True
        ledger.decide_tenant(
            victim, DecisionKind.PREEMPTED, self.reason, ends=False, related=self.by
        )
        ledger.end_notice(victim)
        speaker.preempted(victim, self.reason)


@dataclasses.dataclass(eq=False, slots=True)
class QueueAgain:
    """Returns a preempted tenant to its place in the queue."""

    victim: Tenant

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Queues the victim."""
        ledger.enqueue(self.victim)
