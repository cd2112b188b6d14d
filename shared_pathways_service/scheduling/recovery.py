"""Recovers the state after a restart from persisted grants and from the claims of proxies.

While it recovers, the resource manager grants nothing. With its disk, it knows every grant: a claim
is valid if it matches the grant on the disk.

Without its disk, it accepts claims: of two claims for one slice, the one with the higher
generation; none for a slice that was lost, or whose worker was replaced, in the meantime. After the
recovery, late claims are accepted for one more time to live, as DNS names take a while to lead to
another machine, and only for slices that are present and were neither granted nor promised since:
a grant of this resource manager takes precedence over a claim. A new service and one whose state
was lost look the same until all workers have joined. If none of them was admitted before, the
service is new, and no slice is held.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from shared_pathways_service.events.manager_events import ManagerRecovered, ManagerRecovering
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.holdings import executors_serve
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    Claim,
    RefusalKind,
    TenantAsked,
    WorkerJoined,
)
from shared_pathways_service.scheduling.book.persisted import PersistedGrant, Restored
from shared_pathways_service.scheduling.book.records import Pool, Slice, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.book.states import SliceState
from shared_pathways_service.scheduling.tenant_events import Tenants
from shared_pathways_service.scheduling.worker_events import Workers

__all__ = ["Recovery"]

# Without a disk, generations start above every generation given before, also to proxies that do not
# report in time: this many per second are more than are ever given.
_GENERATIONS_PER_S = 1000
#: How far another machine's clock may have been ahead. A claim beyond that is invalid.
_MAX_SKEW_S = 86_400

_CLAIM_REASON = "its proxy says so, and the state from before is lost"


class Recovery:
    """The state RECOVERING.

    Attributes:
      active: Whether the resource manager still recovers.
    """

    def __init__(
        self,
        config: RmConfig,
        ledger: Ledger,
        speaker: Speaker,
        deadlines: Deadlines,
        *,
        workers: Workers,
        tenants: Tenants,
    ) -> None:
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines
        self._workers = workers
        self._tenants = tenants
        self._state_lost = config.state_lost
        self._recovering_s = config.recovering_s
        self._late_claims_s = config.tenant_ttl_s
        self._until = ledger.now
        self._missing_tenants: list[Tenant] = []
        self._missing_slices: list[Slice] = []
        self._moves_at: dict[str, float | None] = {}
        self._had_a_past = False
        # Those whose persisted state does not say whether their start was recorded.
        self._unknown_starts: set[Slice] = set()
        self.active = False

    def begin(self, restored: Restored) -> None:
        """Enters the persisted state, and waits for reports if any are missing."""
        ledger = self._ledger
        ledger.last_generation = restored.last_generation
        ledger.last_order = restored.last_order
        ledger.marks.update({marked.slice_id: marked.mark for marked in restored.marks})
        self._moves_at = {marked.slice_id: marked.moves_at for marked in restored.marks}
        for grant in sorted(restored.grants, key=lambda grant: grant.order):
            # A forgotten tenant that comes back is refused as a new request of its kind would be.
            if not all(kind in ledger.pools for kind in grant.request.virtual_slices):
                _forget(ledger, grant, "the service has no such slices any more")
            elif not grant.running and not self._tenants.could_fit(grant.request):
                _forget(ledger, grant, "the service has fewer slices than it wants")
            else:
                self._restore(grant)
        self._state_lost |= restored.state_lost
        if self._state_lost:
            ledger.set_state_lost(True)
            floor = int(ledger.now * _GENERATIONS_PER_S)
            ledger.last_generation = max(ledger.last_generation, floor)
        if not restored.grants and not self._state_lost:
            return
        self.active = True
        ledger.knows_starting = False
        self._had_a_past = bool(restored.grants)
        self._until = ledger.now + self._recovering_s
        self._speaker.waits_for = "the resource manager is recovering"
        self._decide(DecisionKind.RECOVERING, f"{len(ledger.tenants)} tenants are known")
        self._speaker.announce(partial(ManagerRecovering, tenants=len(ledger.tenants)))
        self._deadlines.add(lambda: self._until if self.active else None, self._end)

    def end_if_complete(self) -> None:
        """Ends when all known parties have reported, or when the service turns out to be new."""
        if self._state_lost:
            pools = self._ledger.pools.values()
            if not self._had_a_past and all(pool.ready >= pool.count for pool in pools):
                self._end()
            return
        tenants, slices = self._missing_tenants, self._missing_slices
        while tenants and (tenants[-1].connected or tenants[-1].gone):
            tenants.pop()
        while slices and (slices[-1].tenant is None or slices[-1].complete):
            slices.pop()
        if not tenants and not slices:
            self._end()

    def note_worker(self, event: WorkerJoined) -> None:
        """Notes a worker before it is admitted."""
        self._had_a_past |= event.welcomed_at is not None

    def note_tenant(self, event: TenantAsked) -> None:
        """Notes the generations that a proxy knows, if the state was lost."""
        if self._state_lost and event.last_generation <= self._latest:
            ledger = self._ledger
            ledger.last_generation = max(ledger.last_generation, event.last_generation)
            self._had_a_past |= event.last_generation > 0

    def concerns(self, event: TenantAsked) -> bool:
        """Returns whether a proxy refers to state that was lost."""
        return bool(event.claims) or (event.running and self.active and self._state_lost)

    def waits_again(self, event: TenantAsked) -> bool:
        """Returns whether a proxy without slices had some before the state was lost.

        They were taken from it. If it was preempted, it waits without a timeout; if it reports that
        it was idle, it waits for no slices before it works.
        """
        return (
            self._accepts_claims and not event.claims and 0 < event.last_generation <= self._latest
        )

    def claimed(self, event: TenantAsked, pools: tuple[Pool, ...]) -> None:
        """Handles the request of a proxy that ran and whose tenant is not known.

        Args:
          event: The request.
          pools: The pool of each virtual slice.
        """
        standing = [claim for claim in event.claims if self._stands(event, claim)]
        if event.claims and not standing:
            why = "its time to live has run out: its slices are others'"
            self._tenants.refuse(event, RefusalKind.LOST, why)
            return
        self._had_a_past = True
        tenant = self._tenants.enter(event, pools, running=True)
        self._ledger.decide_tenant(tenant, DecisionKind.ADOPTED, _CLAIM_REASON, ends=False)
        # The latest first: an older claim for the same slice is then invalid.
        for claim in sorted(event.claims, key=lambda claim: claim.generation, reverse=True):
            if self._stands(event, claim) and self._may_adopt(tenant, claim):
                self._adopt(tenant, claim)
            else:
                self._tenants.deny(tenant, claim)
        last = max((claim.generation for claim in standing), default=0)
        self._ledger.last_generation = max(self._ledger.last_generation, last)
        self._want_missing(tenant, {claim.virtual_index for claim in event.claims})
        self._speaker.running(tenant)

    # ---- the disk

    def _restore(self, grant: PersistedGrant) -> None:
        tenant = self._tenants.restore(grant)
        self._missing_tenants.append(tenant)
        if not grant.running:
            return
        for index, (slice_id, generation) in sorted(grant.placements.items()):
            found = self._ledger.slices.get(slice_id)
            if found is None:
                found = self._ledger.add_slice(slice_id, tenant.pools[index])
            elif found.tenant is not None or found.pool is not tenant.pools[index]:
                continue  # a damaged disk: never report two holders of one slice
            self._ledger.hold(tenant, index, found, generation)
            relied_on = tuple(grant.incarnations.get(slice_id, ()))
            found.relied_on = relied_on if len(relied_on) == len(found.workers) else ()
            found.moves_at = self._moves_at.get(slice_id)
            if found.moves_at is not None:
                tenant.warned[index,] = f"a drain of {slice_id}"
            found.held_since = grant.held_since.get(slice_id, self._ledger.now)
            self._restore_start(found, grant)
            self._missing_slices.append(found)
        lost = set(grant.lost)
        for index in range(len(tenant.pools)):
            if index in tenant.placed:
                continue
            if index in lost:
                self._ledger.want_repair(tenant, index)
            else:
                self._ledger.want_fill(tenant, index)

    def _restore_start(self, found: Slice, grant: PersistedGrant) -> None:
        if grant.starting is None:
            self._unknown_starts.add(found)
        elif found.id not in grant.starting:
            self._ledger.note_start(found)

    # ---- claims

    def _stands(self, event: TenantAsked, claim: Claim) -> bool:
        """Whether no other placement contradicts a claim; its slice may be missing."""
        if not self._accepts_claims or not 0 <= claim.virtual_index < len(
            event.request.virtual_slices
        ):
            return False
        if not 0 < claim.generation <= self._latest:
            return False
        # Below a clock that was set back, a generation may have been given again since.
        if claim.generation in self._ledger.held_generations:
            return False
        found = self._ledger.slices.get(claim.slice_id)
        if found is None:
            return self.active
        if not self.active and (found.granted or found.tenant is not None or found.kept_for):
            return False
        pool = self._ledger.pools[event.request.virtual_slices[claim.virtual_index]]
        return found.pool is pool and claim.generation > found.generation

    @property
    def _latest(self) -> int:
        """The highest generation that another resource manager may have given by now."""
        return int((self._ledger.now + _MAX_SKEW_S) * _GENERATIONS_PER_S)

    @property
    def _accepts_claims(self) -> bool:
        """Whether claims of proxies may be accepted."""
        if not self._state_lost:
            return False
        return self.active or self._ledger.now < self._until + self._late_claims_s

    def _may_adopt(self, tenant: Tenant, claim: Claim) -> bool:
        """Whether the slice of an uncontradicted claim is still present and unchanged."""
        if claim.virtual_index in tenant.placed:
            return False
        found = self._ledger.slices.get(claim.slice_id)
        if found is None:
            pool = tenant.pools[claim.virtual_index]
            return self.active and len(pool.slices) < pool.count
        silent = self.active and found.state is SliceState.STARTING
        is_there = silent or found.complete
        return is_there and claim.generation > found.void_until

    def _adopt(self, tenant: Tenant, claim: Claim) -> None:
        found = self._ledger.slices.get(claim.slice_id)
        if found is None:
            found = self._ledger.add_slice(claim.slice_id, tenant.pools[claim.virtual_index])
        elif found.tenant is not None:
            why = f"{found.id} is {tenant.label}'s by a later placement"
            self._workers.unplace(found, why, related=tenant.name)
        self._ledger.hold(tenant, claim.virtual_index, found, claim.generation)
        self._ledger.decide_held(found, DecisionKind.CLAIMED, _CLAIM_REASON)
        if found.complete:
            self._ledger.enter(found)

    def _want_missing(self, tenant: Tenant, claimed: set[int]) -> None:
        missing = [index for index in range(len(tenant.pools)) if index not in tenant.placed]
        for index in sorted(missing, key=lambda index: index not in claimed):
            # It ran, so the slices that its gang needs were placed once. More is not known.
            gang_lacks = len(tenant.placed) + len(tenant.lost) < tenant.gang
            if index in claimed or gang_lacks:
                self._ledger.want_repair(tenant, index)
            else:
                self._ledger.want_fill(tenant, index)

    # ---- the end

    def _end(self) -> None:
        self.active = False
        self._ledger.knows_starting = True
        self._until = self._ledger.now
        self._ledger.set_state_lost(False)
        self._speaker.waits_for = ""
        for held in filter(executors_serve, tuple(self._ledger.starting)):
            if self._state_lost or held in self._unknown_starts:
                # They started in an earlier manager's time, as far as is known.
                self._ledger.note_start(held)
        silent = [s for s in self._ledger.slices.values() if s.state is SliceState.STARTING]
        for found in silent:
            if found.tenant is not None:
                reason = f"{found.id} did not report after the resource manager's restart"
                self._workers.lose(found, reason)
        self._decide(DecisionKind.RECOVERED, f"{len(silent)} slices were not heard of")
        tenants = len(self._ledger.tenants)
        self._speaker.announce(
            partial(ManagerRecovered, tenants=tenants, slices_unheard=len(silent))
        )
        self._ledger.begin_service()

    def _decide(self, kind: DecisionKind, reason: str) -> None:
        self._ledger.decide(Decision(time=self._ledger.now, kind=kind, reason=reason))


def _forget(ledger: Ledger, grant: PersistedGrant, why: str) -> None:
    """Ends a tenant that the service can no longer give slices."""
    request = grant.request
    ended = Decision(
        time=ledger.now,
        kind=DecisionKind.FORGOTTEN,
        tenant=request.name,
        user=request.user,
        team=request.team,
        instance_type=",".join(request.type_names),
        reason=why,
        began=None if grant.running or grant.parked is not None else grant.wait_began,
    )
    ledger.decide(ended)
    for index, (slice_id, generation) in sorted(grant.placements.items()):
        ledger.decide(
            dataclasses.replace(
                ended,
                kind=DecisionKind.FREED,
                slice=slice_id,
                virtual_index=index,
                generation=generation,
                instance_type=request.type_names[index],
                began=grant.held_since.get(slice_id, ledger.now),
            )
        )
    ledger.forget(request.name)
