"""Handles tenants' events: requests, broken streams, releases, and waits that time out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.events import Event
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import announcements
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    Claim,
    EndTenantStream,
    ProxyReported,
    RefusalKind,
    RefuseTenant,
    TenantAsked,
    TenantReleased,
    TenantStreamEnded,
    WelcomeTenant,
)
from shared_pathways_service.scheduling.book.persisted import PersistedGrant
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.aging import rank_of
from shared_pathways_service.scheduling.policies.policy import Policy, overrides
from shared_pathways_service.scheduling.policies.spares import (
    could_fit,
    spares_out_of_reach,
    too_many,
)

__all__ = ["Tenants"]

T = TypeVar("T")


class Tenants:
    """Handles requests, disconnects, returns and releases of tenants."""

    def __init__(
        self,
        config: RmConfig,
        ledger: Ledger,
        speaker: Speaker,
        deadlines: Deadlines,
        policies: Sequence[Policy],
    ) -> None:
        self._restored = overrides(policies, Policy.restored)
        self._forbids = overrides(policies, Policy.forbids)
        self._ttl_s = config.tenant_ttl_s
        self._aging_s = config.aging_s
        self._parks = config.idle_release_s is not None and any(
            policy.parks_tenants for policy in policies
        )
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines

    # ---- events

    def returned(self, tenant: Tenant, event: TenantAsked, *, recovering: bool) -> None:
        """Resumes a tenant whose proxy connected again, and sends the proxy what it missed."""
        tenant.connected = True
        tenant.ttl_at = None
        tenant.last_place = None
        tenant.was_notified_running = False
        self.welcome(event, recovering=recovering)
        self._speaker.announce(announcements.returned(tenant))
        known = self._check_claims(tenant, event.claims)
        for index in sorted(tenant.placed.keys() - known):
            self._speaker.notify_placed(tenant, index, tenant.placed[index])
        if tenant.running:
            self._speaker.notify_running(tenant)
        self._speaker.send_notices(tenant)

    def pools_for(self, event: TenantAsked, *, ran: bool) -> tuple[Pool, ...] | None:
        """Refuses a new request that can never be met.

        Current limits do not end running work: they do not apply to a proxy that `ran`.

        Returns:
          The pool of each virtual slice; None: the request was refused.
        """
        request = event.request
        if (ended := self._ledger.ended.get(event.incarnation)) and ended[0] == request.name:
            self.refuse(event, ended[1], ended[2])
            return None
        known = self._ledger.pools
        pools = tuple(filter(None, map(known.get, request.virtual_slices)))
        if len(pools) < len(request.virtual_slices):
            unknown = {str(kind) for kind in request.virtual_slices if kind not in known}
            types = tuple(pool.name for pool in known.values())
            message = f"{', '.join(sorted(unknown))}: the service has {', '.join(types)}"
            self.refuse(event, RefusalKind.UNKNOWN_TYPE, message, types=types)
            return None
        for forbids in () if ran else self._forbids:
            if above := forbids(request):
                self.refuse(event, RefusalKind.LIMIT, above)
                return None
        wants = _count(pools)
        if not could_fit(wants, request.gang):
            spares = spares_out_of_reach(wants, request.gang)
            self.refuse(event, RefusalKind.TOO_MANY, too_many(wants), spares=spares)
            return None
        return pools

    def could_fit(self, request: TenantRequest) -> bool:
        """Returns whether a gang could start if all slices of the service were free."""
        wants = _count(self._ledger.pools[kind] for kind in request.virtual_slices)
        return could_fit(wants, request.gang)

    def enter(
        self,
        event: TenantAsked,
        pools: tuple[Pool, ...],
        *,
        running: bool = False,
        again: bool = False,
    ) -> Tenant:
        """Enters a new tenant, as waiting or as running with its slices, or some of them.

        `pools` has the pool of each virtual slice. If `again`, it waits for slices that were taken
        from it; if they were taken because it was idle, it waits in no line until it works.
        """
        ledger, lifetime_s = self._ledger, event.request.max_lifetime_s
        ledger.last_order += 1
        tenant = self._made(event, pools, ledger.last_order, ledger.now, running=running)
        tenant.connected = True
        tenant.preempted = again
        if lifetime_s is not None:
            tenant.ends_at = ledger.now + lifetime_s
        if again and event.idle_count is not None:
            tenant.preempted, tenant.idled = False, True
            tenant.parked = event.idle_count if self._parks else None
        ledger.add_tenant(tenant)
        self._await_end(tenant)
        if tenant.is_queued:
            ledger.enqueue(tenant)
            ledger.changes.deliver()
        return tenant

    def restore(self, grant: PersistedGrant) -> Tenant:
        """Enters a tenant that was persisted before a restart; the caller enters its slices."""
        pools = tuple([self._ledger.pools[kind] for kind in grant.request.virtual_slices])
        tenant = self._made(grant, pools, grant.order, grant.asked_at, running=grant.running)
        tenant.persisted = tenant.was_queued = True
        tenant.preempted, tenant.idled = grant.preempted, grant.idled
        if grant.parked is not None:
            tenant.parked = grant.parked if self._parks else None
            tenant.was_queued = False
        tenant.waits_since = grant.wait_began
        tenant.ends_at = grant.ends_at
        self._ledger.add_tenant(tenant)
        self._await_end(tenant)
        for restored in self._restored:
            restored(tenant, grant)
        if tenant.is_queued:
            self._ledger.enqueue(tenant)
            self._ledger.changes.deliver()
        self._start_ttl(tenant)
        return tenant

    def _made(
        self,
        of: TenantAsked | PersistedGrant,
        pools: tuple[Pool, ...],
        order: int,
        asked_at: float,
        *,
        running: bool,
    ) -> Tenant:
        request = of.request
        return Tenant(
            request=request,
            incarnation=of.incarnation,
            pid=of.pid,
            pools=pools,
            wants=_count(pools),
            order=order,
            asked_at=asked_at,
            waits_since=asked_at,
            since=self._ledger.now,
            running=running,
            rank=rank_of(request.priority, asked_at, order, self._aging_s),
        )

    def stream_ended(self, event: TenantStreamEnded) -> None:
        """Starts a tenant's time to live."""
        tenant = self._ledger.tenants.get(event.tenant)
        if tenant is None or tenant.incarnation != event.incarnation or not tenant.connected:
            return
        tenant.connected = False
        self._start_ttl(tenant)
        self._speaker.announce(announcements.disconnected(tenant, self._ttl_s))

    def reported(self, event: ProxyReported) -> None:
        """Announces and records an event that a tenant's proxy reports."""
        tenant = self._ledger.tenants.get(event.tenant)
        if tenant is None or tenant.incarnation != event.incarnation:
            return
        flat = json.loads(event.event)
        self._ledger.decide_tenant(tenant, flat["kind"], flat.get("reason", ""), ends=False)
        self._speaker.announce(lambda: Event.from_dict(flat))

    def released(self, event: TenantReleased) -> None:
        """Frees a tenant's slices at once."""
        tenant = self._ledger.tenants.get(event.tenant)
        if tenant is None or event.incarnation not in {"", tenant.incarnation}:
            return
        self._take_back(tenant, event.reason or "released")

    def _take_back(self, tenant: Tenant, reason: str) -> None:
        if tenant.connected:
            self._speaker.say(
                RefuseTenant(
                    tenant=tenant.name,
                    incarnation=tenant.incarnation,
                    kind=RefusalKind.RELEASED,
                    message=reason,
                )
            )
        self._end(tenant, RefusalKind.RELEASED, reason)

    # ---- waits that time out

    def _start_ttl(self, tenant: Tenant) -> None:
        ends = tenant.ttl_at = self._ledger.now + self._ttl_s
        why = f"its proxy did not come back within {self._ttl_s:g} s"
        self._deadlines.add(
            lambda: ends if tenant.ttl_at == ends and not tenant.gone else None,
            lambda: self._end(tenant, RefusalKind.LOST, why),
        )

    def _await_end(self, tenant: Tenant) -> None:
        """Takes a tenant's slices back after its stated lifetime: backfill relies on that."""
        if tenant.ends_at is not None:
            self._deadlines.add(
                lambda: None if tenant.gone else tenant.ends_at,
                lambda: self._take_back(tenant, "its stated lifetime is over"),
            )

    def _end(self, tenant: Tenant, kind: RefusalKind, why: str) -> None:
        self._speaker.announce(announcements.gone(tenant, why))
        self._ledger.remember_end(tenant, kind, why)
        ended = DecisionKind.EXPIRED if kind is RefusalKind.LOST else DecisionKind.RELEASED
        self._ledger.decide_tenant(tenant, ended, why, ends=tenant.is_queued)
        self._ledger.remove_tenant(tenant, why)

    def _check_claims(self, tenant: Tenant, claims: tuple[Claim, ...]) -> set[int]:
        """Answers a proxy's claims; returns the virtual indices of the valid ones."""
        right = set()
        for claim in claims:
            held = tenant.placed.get(claim.virtual_index)
            if held and (held.id, held.generation) == (claim.slice_id, claim.generation):
                right.add(claim.virtual_index)
            else:
                self.deny(tenant, claim)
        return right

    def deny(self, tenant: Tenant, claim: Claim) -> None:
        """Reports to a tenant that a placement that it claims does not exist."""
        if 0 <= claim.virtual_index < len(tenant.pools):
            self._speaker.notify_unplaced(
                tenant,
                claim.virtual_index,
                claim.slice_id,
                claim.generation,
                f"the placement on {claim.slice_id} has ended meanwhile",
            )

    def welcome(self, event: TenantAsked, *, recovering: bool) -> None:
        """Acknowledges a proxy's request."""
        self._speaker.say(WelcomeTenant(event.request.name, event.incarnation, recovering))

    def refuse(
        self,
        event: TenantAsked,
        kind: RefusalKind,
        message: str,
        *,
        types: tuple[str, ...] = (),
        spares: Mapping[str, int] | None = None,
    ) -> None:
        """Refuses a proxy whose tenant was not entered."""
        self._ledger.decide(_decision(event, DecisionKind.REFUSED, message, self._ledger.now))
        self._speaker.refuse(
            RefuseTenant(
                tenant=event.request.name,
                incarnation=event.incarnation,
                kind=kind,
                message=message,
                wanted=_count(event.request.type_names),
                free={pool.name: pool.grantable for pool in self._ledger.pools.values()},
                types=types,
                spares=spares or {},
            )
        )

    def turn_away(self, event: TenantAsked, owner: Tenant) -> None:
        """Ends a stream whose tenant belongs to another proxy that is connected or may return."""
        name = event.request.name
        reason = f"{name} is another proxy's, which is alive"
        if owner.ttl_at is not None:
            left = owner.ttl_at - self._ledger.now
            reason = f"{name} is another proxy's, which may come back for {left:.1f} s"
        self._ledger.decide(_decision(event, DecisionKind.TURNED_AWAY, reason, self._ledger.now))
        self._speaker.say(
            EndTenantStream(tenant=name, incarnation=event.incarnation, reason=reason)
        )


def _decision(event: TenantAsked, kind: DecisionKind, reason: str, now: float) -> Decision:
    """Returns the record of a decision about a proxy whose tenant was not entered."""
    request, wanted = event.request, _count(event.request.type_names)
    return Decision(
        time=now,
        kind=kind,
        tenant=request.name,
        user=request.user,
        team=request.team,
        instance_type=",".join(f"{name}={count}" for name, count in wanted.items()),
        reason=reason,
    )


def _count(things: Iterable[T]) -> dict[T, int]:
    counts: dict[T, int] = {}  # (a Counter takes three times as long for so few entries)
    for one in things:
        counts[one] = counts.get(one, 0) + 1
    return counts
