"""The resource manager's core: each event comes with its time, and what is to be done goes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.census import Census, take_census
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.holdings import (
    ReservationStatus,
    SliceStatus,
    StatusReport,
    report,
    reservations,
    slice_status,
)
from shared_pathways_service.scheduling.book.invariants import validate
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    Instruction,
    ReservationCancelled,
    ReservationMade,
    ResourceManagerEvent,
    SliceCordoned,
    SliceDrained,
    SliceUncordoned,
    TenantActivity,
    TenantAsked,
    TenantReleased,
    TenantStreamEnded,
    Tick,
    WorkerBeat,
    WorkerEnded,
    WorkerJoined,
)
from shared_pathways_service.scheduling.book.persisted import Restored
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.cordon import Cordons
from shared_pathways_service.scheduling.policies.idleness import Idleness
from shared_pathways_service.scheduling.policies.placement_order import Scheduler
from shared_pathways_service.scheduling.policies.preemption import Preemption
from shared_pathways_service.scheduling.policies.reservations import Reservations
from shared_pathways_service.scheduling.recovery import Recovery
from shared_pathways_service.scheduling.tenant_events import Tenants
from shared_pathways_service.scheduling.worker_events import Workers

__all__ = ["ResourceManagerCore"]


class ResourceManagerCore:
    """Decides who gets which slices.

    Times are seconds by one clock that never jumps and goes on across restarts: the server's wall
    clock at its start plus the monotonic time since.
    """

    def __init__(self, config: RmConfig, restored: Restored | None, now: float) -> None:
        """Starts as new, or from what the disk has.

        Args:
          config: Slices and times.
          restored: What was persisted before; None: nothing.
          now: The time.
        """
        self._config = config
        self._since = now
        self._starting_until = now + config.starting_grace_s
        self._newcomers: list[Tenant] = []
        self._ledger = ledger = Ledger(config, now)
        self._speaker = speaker = Speaker(ledger)
        self._deadlines = deadlines = Deadlines()
        self._scheduler = scheduler = Scheduler(ledger, speaker)
        self._preemption = Preemption(config, ledger, speaker, deadlines, scheduler)
        self._cordons = Cordons(config, ledger, speaker, deadlines, scheduler)
        self._idleness = Idleness(config, ledger, speaker, deadlines, self._newcomers.append)
        self._reservations = Reservations(ledger, speaker, deadlines)
        self._workers = Workers(config, ledger, speaker, deadlines)
        self._tenants = Tenants(config, ledger, speaker, deadlines)
        self._recovery = Recovery(
            config, ledger, speaker, deadlines, workers=self._workers, tenants=self._tenants
        )
        self._reservations.restore(restored or Restored())
        self._recovery.begin(restored or Restored())
        self._take_in: Mapping[type[ResourceManagerEvent], Callable[[Any], None]] = {
            WorkerBeat: self._workers.beat,
            WorkerJoined: self._joined,
            WorkerEnded: self._workers.ended,
            TenantAsked: self._asked,
            TenantActivity: self._idleness.heard,
            TenantStreamEnded: self._tenants.stream_ended,
            TenantReleased: self._tenants.released,
            SliceCordoned: self._cordons.marked,
            SliceDrained: self._cordons.marked,
            SliceUncordoned: self._cordons.marked,
            ReservationMade: self._reservations.made,
            ReservationCancelled: self._reservations.cancelled,
            Tick: self._ticked,
        }
        # Whoever waits for a service that starts is judged when that time is over, event or not.
        deadlines.add(lambda: self._starting_until, lambda: None)

    def handle(self, event: ResourceManagerEvent, now: float) -> list[Instruction]:
        """Takes an event in.

        Args:
          event: What happened.
          now: When; never earlier than before.

        Returns:
          What to do, in this order. A `Persist` comes first and is on the disk before anything
          behind it is done.

        Raises:
          ValueError: The event is one that the server should not have let through.
        """
        self._ledger.now = now
        self._take_in[type(event)](event)
        if type(event) is WorkerBeat and not self._speaker.gathered:
            return []
        self._settle()
        return self._speaker.take()

    def next_deadline(self) -> float | None:
        """Returns when the next `Tick` is due; None: not before another event."""
        if self._speaker.gathered:
            return self._since
        return self._deadlines.next()

    def status(self, now: float, only: str = "") -> StatusReport:
        """Returns who holds what, and who waits for what; see `report`."""
        return report(
            self._ledger,
            state="recovering" if self._recovery.active else "serving",
            since=self._since,
            spares=self._config.spares,
            reason_of=self._speaker.reason,
            now=now,
            only=only,
        )

    def census(self, now: float) -> Census:
        """Returns how many there are of what."""
        return take_census(self._ledger, recovering=self._recovery.active, now=now)

    @property
    def capacity(self) -> dict[str, int]:
        """How many slices the service should have, spares included, by instance type."""
        return {pool.name: pool.count for pool in self._ledger.pools.values()}

    def knows(self, tenant: str, incarnation: str = "") -> bool:
        """Returns whether a tenant is there, waiting or running."""
        found = self._ledger.tenants.get(tenant)
        return found is not None and incarnation in {"", found.incarnation}

    def knows_slice(self, slice_id: str) -> bool:
        """Returns whether a physical slice is known, be its workers in or not."""
        return slice_id in self._ledger.slices

    def slice_ids(self, limit: int) -> list[str]:
        """Returns the names of slices that are known, of many the first."""
        known = sorted(self._ledger.slices.values(), key=lambda one: one.sort_key)
        return [one.id for one in known[:limit]]

    def slice_status(self, slice_id: str, now: float) -> SliceStatus:
        """Returns how one slice stands.

        Raises:
          KeyError: There is no such slice.
        """
        return slice_status(self._ledger.slices[slice_id], now)

    def refusal_of(self, asked: Reservation, now: float) -> tuple[str, str] | None:
        """Returns which field of a reservation cannot be, and what would be right; None: it can."""
        self._ledger.now = max(self._ledger.now, now)
        return self._reservations.refusal(asked)

    @property
    def reservations(self) -> tuple[ReservationStatus, ...]:
        """What is reserved, in the order of the starts."""
        return reservations(self._ledger)

    def knows_reservation(self, name: str) -> bool:
        """Returns whether there is a reservation of that name."""
        return self._reservations.knows(name)

    def validate_state(self) -> None:
        """Raises AssertionError where the state contradicts itself; for tests."""
        validate(self._ledger, recovering=self._recovery.active)

    # ---- events

    def _ticked(self, _event: Tick) -> None:
        while act := self._deadlines.take_due(self._ledger.now):
            act()

    def _joined(self, event: WorkerJoined) -> None:
        self._recovery.heard(event)
        self._workers.joined(event)

    def _asked(self, event: TenantAsked) -> None:
        if not 0 <= event.num_elastic < len(event.virtual_slices):
            raise ValueError(
                f"num_elastic={event.num_elastic} of {len(event.virtual_slices)} virtual slices"
            )
        recovering = self._recovery.active
        self._recovery.heard_tenant(event)
        tenant = self._ledger.tenants.get(event.tenant)
        if tenant is not None:
            if tenant.incarnation == event.incarnation:
                self._preemption.returned(tenant)
                self._tenants.returned(tenant, event, recovering=recovering)
                self._idleness.returned(tenant)
                self._newcomers.append(tenant)
            else:
                self._tenants.turn_away(event, tenant)
            return
        self._tenants.welcome(event, recovering=recovering)
        ran, again = self._recovery.concerns(event), self._recovery.waits_again(event)
        if self._tenants.refuses_at_once(event, ran=ran or again):
            return
        if ran:
            self._recovery.claimed(event)
        else:
            tenant = self._tenants.enter(event, again=again)
            self._idleness.returned(tenant)
            self._newcomers.append(tenant)

    # ---- after each event

    def _settle(self) -> None:
        """Places whoever can be placed, refuses who will not wait, tells those that do."""
        if self._recovery.active:
            self._recovery.end_if_complete()
        if not self._recovery.active:
            self._place()
        while self._ledger.undecided and (hopeless := self._first_hopeless()):
            self._tenants.refuse_hopeless(hopeless)
            self._place()
        for newcomer in self._newcomers:
            if newcomer.is_queued and not newcomer.gone:
                self._note_wait(newcomer)
                self._speaker.queued(newcomer)
        self._newcomers.clear()
        untold = self._ledger.untold
        while untold:
            pool = next(iter(untold))
            del untold[pool]
            if pool.waiting.entries and pool.retell_at is None:
                self._retell(pool)

    def _place(self) -> None:
        self._scheduler.run()
        self._preemption.run()

    def _note_wait(self, tenant: Tenant) -> None:
        if not tenant.was_queued:
            tenant.was_queued = True
            why = self._speaker.reason(tenant)
            self._ledger.decide_tenant(tenant, DecisionKind.QUEUED, why, ends=False)

    def _first_hopeless(self) -> Tenant | None:
        """Returns a tenant that does not want to queue and has no reason left to."""
        if self._recovery.active:
            return None
        undecided = self._ledger.undecided
        if self._ledger.now >= self._starting_until:
            return next(iter(undecided))
        left = {pool: _left_when_started(pool) for pool in self._ledger.pools.values()}
        for tenant in undecided:
            hoped = sum(min(want, left[pool][tenant]) for pool, want in tenant.wants.items())
            if hoped < tenant.needed:
                return tenant
        return None

    def _retell(self, pool: Pool) -> None:
        pause = self._config.retell_s
        if self._speaker.retell(pool, self._ledger.now, pause):
            self._deadlines.add(
                lambda: pool.retell_at,
                lambda: self._speaker.retell_all(pool, self._ledger.now),
            )


def _left_when_started(pool: Pool) -> dict[Tenant, int]:
    """Returns how many slices of a pool each waiting tenant can have, all before it served.

    Counted for the whole line at once: of a service that starts, everybody may want slices.
    """
    if pool.ready + pool.barred >= pool.count:
        # Nothing more will come: the free slices are those of whoever is first.
        left = dict.fromkeys((entry[-1] for entry in pool.waiting.entries), 0)
        left.update((tenant, pool.room_for(tenant)) for tenant in list(left)[:1])
        return left
    left = {}
    rest = pool.usable - pool.held - len(pool.repairs) - len(pool.fills)
    for *_, tenant in pool.waiting.entries:
        left[tenant] = max(0, rest)
        rest -= tenant.wants[pool]
    return left
