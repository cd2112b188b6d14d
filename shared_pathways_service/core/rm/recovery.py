"""What a restart left: grants from the disk, claims of proxies, and the time until both agree.

While it recovers, the resource manager grants nothing. With its disk, it knows every grant: a claim
is right if it is the one on the disk. Without it, it believes the claims; of two for one slice, the
one with the higher generation.
"""

from __future__ import annotations

from shared_pathways_service.core.rm.config import RmConfig
from shared_pathways_service.core.rm.deadlines import Deadlines
from shared_pathways_service.core.rm.ledger import Ledger
from shared_pathways_service.core.rm.messages import (
    Announce,
    Claim,
    PersistedGrant,
    RefusalKind,
    Restored,
    SliceState,
    TenantAsked,
)
from shared_pathways_service.core.rm.records import Slice, Tenant
from shared_pathways_service.core.rm.speaker import Speaker
from shared_pathways_service.core.rm.tenants import Tenants
from shared_pathways_service.core.rm.workers import Workers

__all__ = ["Recovery"]

#: A claim of more is nobody's that was ever granted, and would use the numbers up.
_MAX_CLAIMED = 2**62


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
        self._until = ledger.now
        self._unheard_tenants: list[Tenant] = []
        self._unheard_slices: list[Slice] = []
        self.active = False

    def begin(self, restored: Restored) -> None:
        """Enters what the disk has, and waits for reports if there is anything to wait for."""
        ledger = self._ledger
        ledger.last_generation = restored.last_generation
        ledger.last_order = restored.last_order
        for grant in sorted(restored.grants, key=lambda grant: grant.order):
            if all(kind in ledger.pools for kind in grant.virtual_slices):
                self._restore(grant)
            else:
                # Its type is no longer the service's; it hears so when it comes back.
                ledger.forget(grant.tenant)
        self._state_lost |= restored.state_lost
        if self._state_lost:
            ledger.set_state_lost(True)
            # Above all that was ever given, also to proxies that are not heard of in time: fewer
            # than a thousand a second are.
            ledger.last_generation = max(ledger.last_generation, int(ledger.now * 1000))
        if not restored.grants and not self._state_lost:
            return
        self.active = True
        self._until = ledger.now + self._recovering_s
        self._speaker.waits_for = "the resource manager is recovering"
        self._speaker.say(Announce(kind="rm.recovering", data={"tenants": len(ledger.tenants)}))
        self._deadlines.add(lambda: self._until if self.active else None, self._end)

    def end_if_complete(self) -> None:
        """Ends when everybody known has reported; without the disk, nobody knows who that is."""
        tenants, slices = self._unheard_tenants, self._unheard_slices
        while tenants and (tenants[-1].connected or tenants[-1].gone):
            tenants.pop()
        while slices and (slices[-1].tenant is None or slices[-1].state is SliceState.READY):
            slices.pop()
        if not tenants and not slices and not self._state_lost:
            self._end()

    def claimed(self, event: TenantAsked) -> None:
        """Hears a proxy that holds slices and whose tenant is not known."""
        if not any(self._believes(event, claim) for claim in event.claims):
            why = "its time to live has run out: its slices are others'"
            self._tenants.refuse(event, RefusalKind.LOST, why)
            return
        tenant = self._tenants.enter(event, running=True)
        for claim in event.claims:
            # Asked anew: an earlier one of these claims may have changed the answer.
            if claim.virtual_index not in tenant.placed and self._believes(event, claim):
                self._adopt(tenant, claim)
            else:
                self._tenants.deny(tenant, claim)
        self._want_missing(tenant, {claim.virtual_index for claim in event.claims})
        self._speaker.running(tenant)

    # ---- the disk

    def _restore(self, grant: PersistedGrant) -> None:
        tenant = self._tenants.restore(grant)
        self._unheard_tenants.append(tenant)
        if not grant.running:
            return
        for index, (slice_id, generation) in sorted(grant.placements.items()):
            found = self._ledger.slices.get(slice_id)
            if found is None:
                found = self._ledger.add_slice(slice_id, tenant.pools[index])
            elif found.tenant is not None or found.pool is not tenant.pools[index]:
                continue  # a damaged disk: nobody is told that two hold one slice
            self._ledger.hold(tenant, index, found, generation)
            found.relied_on = tuple(grant.incarnations.get(slice_id, ()))
            self._unheard_slices.append(found)
        lost = set(grant.lost)
        for index in range(len(tenant.kinds)):
            if index in tenant.placed:
                continue
            if index in lost:
                self._ledger.want_repair(tenant, index)
            else:
                self._ledger.want_fill(tenant, index)

    # ---- claims

    def _believes(self, event: TenantAsked, claim: Claim) -> bool:
        if not self.active or not self._state_lost:
            return False
        if not 0 <= claim.virtual_index < len(event.virtual_slices):
            return False
        if not 0 < claim.generation < _MAX_CLAIMED:
            return False
        pool = self._ledger.pools[event.virtual_slices[claim.virtual_index]]
        found = self._ledger.slices.get(claim.slice_id)
        if found is None:
            return len(pool.slices) < pool.count
        usable = found.state is not SliceState.LOST and found.pool is pool
        return usable and claim.generation > found.generation

    def _adopt(self, tenant: Tenant, claim: Claim) -> None:
        found = self._ledger.slices.get(claim.slice_id)
        if found is None:
            found = self._ledger.add_slice(claim.slice_id, tenant.pools[claim.virtual_index])
        elif found.tenant is not None:
            self._workers.unplace(found, f"{found.id} is {tenant.label}'s by a later placement")
        self._ledger.hold(tenant, claim.virtual_index, found, claim.generation)
        self._ledger.last_generation = max(self._ledger.last_generation, claim.generation)

    def _want_missing(self, tenant: Tenant, claimed: set[int]) -> None:
        missing = [index for index in range(len(tenant.kinds)) if index not in tenant.placed]
        for index in sorted(missing, key=lambda index: index not in claimed):
            # It ran: what its gang lacks must have been placed once. More is not known.
            gang_lacks = len(tenant.placed) + len(tenant.lost) < tenant.needed
            if index in claimed or gang_lacks:
                self._ledger.want_repair(tenant, index)
            else:
                self._ledger.want_fill(tenant, index)

    # ---- the end

    def _end(self) -> None:
        self.active = False
        self._ledger.set_state_lost(False)
        self._speaker.waits_for = ""
        unheard = [s for s in self._ledger.slices.values() if s.state is SliceState.STARTING]
        for found in unheard:
            if found.tenant is not None:
                reason = f"{found.id} did not report after the resource manager's restart"
                self._workers.lose(found, reason)
        data = {"tenants": len(self._ledger.tenants), "slices_unheard": len(unheard)}
        self._speaker.say(Announce(kind="rm.recovered", data=data))
        for pool in self._ledger.pools.values():
            self._ledger.unserved[pool] = None
            self._ledger.untold[pool] = None
