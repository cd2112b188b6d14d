"""Takes slices back from idle tenants after a warning.

A proxy reports periodically, if it changed, how often its tenant was seen at work and how long ago.
A running tenant that was idle for `RmConfig.idle_release_s`, counted from its start at the
earliest, loses its slices; `idle_warning_s` before that it is warned. Silence alone costs no tenant
its slices: they are taken only if the proxy has confirmed after the warning that its tenant is
still idle, and any work until then withdraws the warning. A tenant whose proxy never reports, as
those of older versions, keeps its slices.

The tenant is then *parked*: it holds nothing and waits in no line, so it blocks no other tenant.
When it next tries to work, which fails, it requests its slices anew, behind all tenants in the
queue; it then waits without a timeout.

Warnings are not persisted: after a restart of the resource manager they are given anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shared_pathways_service.events import Event
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.events.tenants import TenantIdled, TenantIdling, TenantIdlingWithdrawn
from shared_pathways_service.scheduling.book.actions import Actions, vacate
from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    PlaceWanted,
    TenantLeft,
    Vacated,
)
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.holdings import IdleStatus
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import NotifyIdle, TenantActivity
from shared_pathways_service.scheduling.book.records import Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.aging import rank_of
from shared_pathways_service.scheduling.policies.policy import Policy

__all__ = ["Idleness"]


@dataclasses.dataclass(eq=False, slots=True)
class _Watch:
    """The watch over a running tenant that reports its activity.

    Attributes:
      ends_at: While it is warned: when its slices are taken back.
      confirmed: Whether its proxy has confirmed after the warning that it is still idle.
    """

    ends_at: float | None = None
    confirmed: bool = False


@dataclasses.dataclass(eq=False, slots=True)
class _Activity:
    """The reported activity of a tenant.

    Attributes:
      worked: Its count of activity in its last report.
      active_at: When it was last at work, by its reports.
      watch: The watch over it, while it runs.
    """

    worked: int
    active_at: float = 0.0
    watch: _Watch | None = None


class Idleness(Policy):
    """Its state: the activity of each tenant that reports it."""

    parks_tenants = True

    def __init__(self, config: RmConfig, ledger: Ledger, deadlines: Deadlines) -> None:
        self._release_s = config.idle_release_s
        self._warning_s = config.idle_warning_s
        self._aging_s = config.aging_s
        self._ledger = ledger
        self._deadlines = deadlines
        self._activity: dict[Tenant, _Activity] = {}

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """Tenants that lose all their slices, or leave."""
        return {Vacated: self._vacated, TenantLeft: self._left}

    @property
    def events(self) -> Mapping[type, Callable[[Any], Actions]]:
        """Proxies' reports on their tenants' activity."""
        return {TenantActivity: self._reported}

    def greeted(self, tenant: Tenant) -> Actions:
        """Sends a tenant whose proxy connected the messages that it may have missed."""
        if tenant.parked is not None:
            return (self._notice(tenant, released=True),)
        known = self._activity.get(tenant)
        if known is None or known.watch is None or known.watch.ends_at is None:
            return ()
        left = max(0.0, known.watch.ends_at - self._ledger.now)
        return (self._notice(tenant, release_s=left),)

    def idle_status(self, tenant: Tenant, now: float) -> IdleStatus | None:
        """Returns how long a watched tenant has been idle, and when its slices are taken back."""
        known = self._activity.get(tenant)
        if known is None or known.watch is None:
            return None
        ends_at = known.watch.ends_at
        return IdleStatus(
            idle_s=max(0.0, now - self._idle_since(tenant)),
            release_s=None if ends_at is None else max(0.0, ends_at - now),
        )

    def validate(self, *, recovering: bool) -> None:
        """Checks that watched tenants run."""
        del recovering
        for tenant, known in self._activity.items():
            assert self._ledger.tenants.get(tenant.name) is tenant
            if known.watch is not None:
                assert tenant.running, f"{tenant.name}: its idleness is watched, and does not run"

    def _vacated(self, change: Vacated) -> None:
        known = self._activity.get(change.tenant)
        if known is not None:
            known.watch = None

    def _left(self, change: TenantLeft) -> None:
        self._activity.pop(change.tenant, None)

    # ---- events

    def _reported(self, event: TenantActivity) -> Actions:
        tenant = self._ledger.tenants.get(event.tenant)
        if self._release_s is None or tenant is None or tenant.incarnation != event.incarnation:
            return
        known = self._activity.get(tenant)
        has_worked = known is None or event.count != known.worked
        if known is None:
            known = self._activity[tenant] = _Activity(event.count)
        known.worked = event.count
        if has_worked:
            known.active_at = max(known.active_at, self._ledger.now - event.idle_s)
        if tenant.parked is not None:
            if event.count > tenant.parked:
                yield Unpark(tenant, self._aging_s)
        elif tenant.running:
            yield from self._look_out(tenant, known, has_worked=has_worked)

    # ---- the watch

    def _look_out(self, tenant: Tenant, known: _Activity, *, has_worked: bool) -> Actions:
        watch = known.watch
        if watch is None:
            known.watch = watch = _Watch()
            self._await_warning(tenant, watch)
        elif watch.ends_at is None:
            return
        elif has_worked:
            watch.ends_at = None
            yield self._notice(tenant, withdrawn=True)
            yield self._withdrawn(tenant)
            self._await_warning(tenant, watch)
        elif not watch.confirmed:
            watch.confirmed = True
            ends_at = watch.ends_at
            self._deadlines.add(
                lambda: ends_at if self._is_on(tenant, watch, ends_at) else None,
                lambda: self._release(tenant, known),
            )

    def _await_warning(self, tenant: Tenant, watch: _Watch) -> None:
        assert self._release_s is not None
        after = self._release_s - self._warning_s
        self._deadlines.add(
            lambda: self._idle_since(tenant) + after if self._is_on(tenant, watch, None) else None,
            lambda: self._warn(tenant, watch),
        )

    def _is_on(self, tenant: Tenant, watch: _Watch, ends_at: float | None) -> bool:
        known = self._activity.get(tenant)
        return known is not None and known.watch is watch and ends_at in {None, watch.ends_at}

    def _warn(self, tenant: Tenant, watch: _Watch) -> Actions:
        if not tenant.connected:
            # It could not be warned. When it connects again, it reports how idle it is.
            self._activity[tenant].watch = None
            return
        watch.ends_at = self._ledger.now + self._warning_s
        watch.confirmed = False
        yield self._notice(tenant, release_s=self._warning_s)
        idle_s = self._idle_s(tenant)
        event = partial(TenantIdling, tenant=tenant.name, idle_s=idle_s, release_s=self._warning_s)
        yield AnnounceIdleness(event)

    def _release(self, tenant: Tenant, known: _Activity) -> Actions:
        if not tenant.connected:
            # It could not answer any more; it reports its activity when it is back.
            known.watch = None
            yield self._withdrawn(tenant)
            return
        reason = f"released: idle for {self._idle_s(tenant):.0f} s"
        yield Park(tenant, known.worked, reason)
        yield self._notice(tenant, released=True)
        idle_s = self._idle_s(tenant)
        yield AnnounceIdleness(
            partial(TenantIdled, tenant=tenant.name, reason=reason, idle_s=idle_s)
        )

    def _idle_since(self, tenant: Tenant) -> float:
        """Returns when a tenant was last at work, as far as is known.

        For a running tenant, this is not before the placement of its slices; for a tenant that is
        parked after a restart, it is the time at which it was parked.
        """
        known = self._activity.get(tenant)
        active_at = 0.0 if known is None else known.active_at
        if not tenant.running:
            return active_at or tenant.waits_since
        began = min((held.held_since for held in tenant.placed.values()), default=tenant.since)
        return max(active_at, began)

    # ---- notifications

    def _notice(
        self,
        tenant: Tenant,
        *,
        release_s: float = 0.0,
        withdrawn: bool = False,
        released: bool = False,
    ) -> SendIdleNotice:
        known = self._activity.get(tenant)
        worked = 0 if known is None else known.worked
        return SendIdleNotice(
            NotifyIdle(
                tenant=tenant.name,
                idle_s=self._idle_s(tenant),
                release_s=release_s,
                withdrawn=withdrawn,
                released=released,
                count=worked if tenant.parked is None else tenant.parked,
            ),
            tenant,
        )

    def _withdrawn(self, tenant: Tenant) -> AnnounceIdleness:
        idle_s = self._idle_s(tenant)
        return AnnounceIdleness(partial(TenantIdlingWithdrawn, tenant=tenant.name, idle_s=idle_s))

    def _idle_s(self, tenant: Tenant) -> float:
        return self._ledger.now - self._idle_since(tenant)


# ---- actions


@dataclasses.dataclass(eq=False, slots=True)
class SendIdleNotice:
    """Sends a tenant whose proxy is connected a message on its idleness."""

    message: NotifyIdle
    tenant: Tenant

    def apply(self, _ledger: Ledger, speaker: Speaker) -> None:
        """Sends the message."""
        if self.tenant.connected:
            speaker.say(self.message)


@dataclasses.dataclass(eq=False, slots=True)
class AnnounceIdleness:
    """Announces a tenant's idleness to watchers and logs."""

    make: Callable[[], Event]

    def apply(self, _ledger: Ledger, speaker: Speaker) -> None:
        """Adds the event."""
        speaker.announce(self.make)


@dataclasses.dataclass(eq=False, slots=True)
class Park:
    """Takes all slices from an idle tenant, which waits in no line.

    Attributes:
      worked: Its count of activity.
    """

    tenant: Tenant
    worked: int
    reason: str

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Vacates the tenant."""
        tenant, reason = self.tenant, self.reason
        tenant.idled = True
        tenant.parked = self.worked
        vacate(ledger, speaker, tenant, reason)
        if tenant.notice is not None:
            # Its slices go to the tenant that was to preempt it.
            ledger.end_notice(tenant)
        ledger.decide_tenant(tenant, DecisionKind.IDLED, reason, ends=False)
        ledger.write(tenant)


@dataclasses.dataclass(eq=False, slots=True)
class Unpark:
    """Queues a parked tenant, as if it made its request now."""

    tenant: Tenant
    aging_s: float | None

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Gives the tenant a new arrival number and a place in its lines."""
        tenant, now = self.tenant, ledger.now
        tenant.parked = None
        ledger.last_order += 1
        tenant.order = ledger.last_order
        tenant.asked_at = tenant.since = tenant.waits_since = now
        tenant.rank = rank_of(tenant.request.priority, now, tenant.order, self.aging_s)
        tenant.was_queued = False
        ledger.enqueue(tenant)
        ledger.changes.publish(PlaceWanted(tenant))
