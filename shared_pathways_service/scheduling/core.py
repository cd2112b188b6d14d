"""The resource manager's core: takes events with their times, and returns instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.scheduling.book.actions import Actions
from shared_pathways_service.scheduling.book.census import Census, take_census
from shared_pathways_service.scheduling.book.changes import PlaceWanted
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.holdings import (
    IdleStatus,
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
    ExecutorEnded,
    ExecutorServing,
    Instruction,
    PlacementUnreachable,
    ProxyReported,
    ResourceManagerEvent,
    TenantAsked,
    TenantReleased,
    TenantStreamEnded,
    Tick,
    WorkerBeat,
    WorkerEnded,
    WorkerJoined,
)
from shared_pathways_service.scheduling.book.persisted import Restored
from shared_pathways_service.scheduling.book.records import Tenant
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.executor_assignments import ExecutorAssignments
from shared_pathways_service.scheduling.policies.backfill import Backfill
from shared_pathways_service.scheduling.policies.cordon import Cordons
from shared_pathways_service.scheduling.policies.idleness import Idleness
from shared_pathways_service.scheduling.policies.placement_order import Placement
from shared_pathways_service.scheduling.policies.policy import MakePolicy, Policy, overrides
from shared_pathways_service.scheduling.policies.preemption.preemption import Preemption
from shared_pathways_service.scheduling.policies.queue_refusals import Refusals
from shared_pathways_service.scheduling.policies.reservations import Reservations, refusal_of
from shared_pathways_service.scheduling.policies.team_limits import TeamLimits
from shared_pathways_service.scheduling.queue_notices import QueueNotices
from shared_pathways_service.scheduling.recovery import Recovery
from shared_pathways_service.scheduling.tenant_events import Tenants
from shared_pathways_service.scheduling.unreachable_placements import UnreachablePlacements
from shared_pathways_service.scheduling.worker_events import Workers

__all__ = ["POLICIES", "ResourceManagerCore"]

#: The policies of a service, in the order in which they are called.
POLICIES: tuple[MakePolicy, ...] = (
    TeamLimits,
    Cordons,
    Reservations,
    Preemption,
    Backfill,
    Idleness,
    Refusals,
)


class ResourceManagerCore:
    """Decides who gets which slices.

    Times are seconds by one clock that never jumps and goes on across restarts: the server's wall
    clock at its start plus the monotonic time since.
    """

    def __init__(
        self,
        config: RmConfig,
        restored: Restored | None,
        now: float,
        policies: Sequence[MakePolicy] = POLICIES,
    ) -> None:
        """Starts as new, or from the persisted state.

        Args:
          config: Slices and times.
          restored: The state that was persisted before; None: none.
          now: The time.
          policies: The factories of the policies, in the order in which these are called.
        """
        self._config = config
        self._since = now
        self._ledger = ledger = Ledger(config, now)
        self._speaker = speaker = Speaker(ledger)
        self._deadlines = deadlines = Deadlines()
        self._policies: Sequence[Policy] = [make(config, ledger, deadlines) for make in policies]
        self._returned = overrides(self._policies, Policy.returned)
        self._greeted = overrides(self._policies, Policy.greeted)
        self._act = overrides(self._policies, Policy.act)
        self._conclude = overrides(self._policies, Policy.conclude)
        self._refuse = overrides(self._policies, Policy.refuse)
        self._idle_statuses = overrides(self._policies, Policy.idle_status)
        self._placement = Placement(self._policies)
        self._queue_notices = QueueNotices(config, ledger, speaker, deadlines)
        ledger.changes.subscribe(self._placement.consumes)
        ledger.changes.subscribe(self._queue_notices.consumes)
        for policy in self._policies:
            ledger.changes.subscribe(policy.consumes)
        self._workers = Workers(config, ledger, speaker, deadlines)
        unreachable = UnreachablePlacements(ledger, deadlines, self._workers)
        self._executors = ExecutorAssignments(ledger, speaker, self._workers, unreachable)
        self._tenants = Tenants(config, ledger, speaker, deadlines, self._policies)
        self._recovery = Recovery(
            config, ledger, speaker, deadlines, workers=self._workers, tenants=self._tenants
        )
        for policy in self._policies:
            self._carry_out(policy.begin(restored or Restored()))
        self._recovery.begin(restored or Restored())
        self._take_in: dict[type[ResourceManagerEvent], Callable[[Any], None]] = {
            WorkerBeat: self._workers.beat,
            WorkerJoined: self._joined,
            WorkerEnded: self._workers.ended,
            ExecutorServing: self._executors.serving,
            ExecutorEnded: self._executors.ended,
            TenantAsked: self._asked,
            ProxyReported: self._tenants.reported,
            PlacementUnreachable: unreachable.reported,
            TenantStreamEnded: self._tenants.stream_ended,
            TenantReleased: self._tenants.released,
            Tick: self._ticked,
        }
        for policy in self._policies:
            for kind, act in policy.events.items():
                self._take_in[kind] = self._carrying_out(act)

    def handle(self, event: ResourceManagerEvent, now: float) -> list[Instruction]:
        """Handles an event.

        Args:
          event: The event.
          now: Its time; never earlier than that of the event before.

        Returns:
          What to do, in this order. A `Persist` comes first, and must be on the disk before the
          instructions after it are carried out.

        Raises:
          ValueError: The event is invalid; the server should have rejected it.
        """
        self._ledger.now = now
        kind = type(event)
        if (take_in := self._take_in.get(kind)) is not None:
            take_in(event)
        if kind is WorkerBeat and not self._speaker.gathered:
            return []
        self._settle()
        return self._speaker.take()

    def next_deadline(self) -> float | None:
        """Returns when the next `Tick` is due; None: not before the next event."""
        if self._speaker.gathered:
            return self._since
        return self._deadlines.next()

    def status(self, now: float, only: str = "") -> StatusReport:
        """Returns the holders of slices and the waiting tenants; see `report`."""
        return report(
            self._ledger,
            state="recovering" if self._recovery.active else "serving",
            since=self._since,
            spares=self._config.spares,
            reason_of=self._speaker.reason,
            idle_of=self._idle_status,
            now=now,
            only=only,
        )

    def census(self, now: float) -> Census:
        """Returns the counts of slices and tenants."""
        return take_census(self._ledger, recovering=self._recovery.active, now=now)

    @property
    def capacity(self) -> dict[str, int]:
        """The slices that the service should have, spares included, by instance type."""
        return {pool.name: pool.count for pool in self._ledger.pools.values()}

    def knows(self, tenant: str, incarnation: str = "") -> bool:
        """Returns whether a tenant is known, waiting or running."""
        found = self._ledger.tenants.get(tenant)
        return found is not None and incarnation in {"", found.incarnation}

    def request_of(self, tenant: str, incarnation: str) -> TenantRequest | None:
        """Returns the request of a known tenant; None: it is not known, or is another process."""
        found = self._ledger.tenants.get(tenant)
        return found.request if found and found.incarnation == incarnation else None

    def knows_slice(self, slice_id: str) -> bool:
        """Returns whether a physical slice is known, with or without connected workers."""
        return slice_id in self._ledger.slices

    def slice_ids(self, limit: int) -> list[str]:
        """Returns the names of the first `limit` known slices."""
        known = sorted(self._ledger.slices.values(), key=lambda one: one.sort_key)
        return [one.id for one in known[:limit]]

    def slice_status(self, slice_id: str, now: float) -> SliceStatus:
        """Returns the status of one slice.

        Raises:
          KeyError: There is no such slice.
        """
        return slice_status(self._ledger.slices[slice_id], now)

    def refusal_of(self, asked: Reservation, now: float) -> tuple[str, str] | None:
        """Returns the invalid field of a reservation and what is valid; None: it can be made."""
        self._ledger.now = max(self._ledger.now, now)
        return refusal_of(self._ledger, asked, max(self._ledger.now, asked.starts))

    @property
    def reservations(self) -> tuple[ReservationStatus, ...]:
        """All reservations, by start time."""
        return reservations(self._ledger)

    def knows_reservation(self, name: str) -> bool:
        """Returns whether there is a reservation of that name."""
        reserved = (pool.reserved for pool in self._ledger.pools.values())
        return any(one.name == name for of in reserved if of is not None for one in of.entries)

    def _idle_status(self, tenant: Tenant, now: float) -> IdleStatus | None:
        for idle_status in self._idle_statuses:
            if (idle := idle_status(tenant, now)) is not None:
                return idle
        return None

    def validate_state(self) -> None:
        """Raises AssertionError where the state contradicts itself; for tests."""
        validate(self._ledger, recovering=self._recovery.active)
        for policy in self._policies:
            policy.validate(recovering=self._recovery.active)

    # ---- events

    def _carrying_out(self, act: Callable[[Any], Actions]) -> Callable[[Any], None]:
        """Returns a function that carries out the actions of a policy at an event."""
        return lambda event: self._carry_out(act(event))

    def _carry_out(self, actions: Actions) -> None:
        if not actions:
            return
        ledger, speaker = self._ledger, self._speaker
        deliver = ledger.changes.deliver
        for action in actions:
            action.apply(ledger, speaker)
            deliver()

    def _ticked(self, _event: Tick) -> None:
        while act := self._deadlines.take_due(self._ledger.now):
            if (actions := act()) is not None:
                self._carry_out(actions)
            self._ledger.changes.deliver()

    def _joined(self, event: WorkerJoined) -> None:
        self._recovery.note_worker(event)
        self._workers.joined(event)

    def _asked(self, event: TenantAsked) -> None:
        recovering = self._recovery.active
        self._recovery.note_tenant(event)
        tenant = self._ledger.tenants.get(event.request.name)
        if tenant is not None:
            if tenant.incarnation == event.incarnation:
                for returned in self._returned:
                    self._carry_out(returned(tenant))
                self._tenants.returned(tenant, event, recovering=recovering)
                self._executors.greet(tenant)
                self._greet(tenant)
            else:
                self._tenants.turn_away(event, tenant)
            return
        self._tenants.welcome(event, recovering=recovering)
        ran, again = self._recovery.concerns(event), self._recovery.waits_again(event)
        pools = self._tenants.pools_for(event, ran=ran or again)
        if pools is None:
            return
        if ran:
            self._recovery.claimed(event, pools)
        else:
            tenant = self._tenants.enter(event, pools, again=again)
            self._greet(tenant)

    def _greet(self, tenant: Tenant) -> None:
        for greeted in self._greeted:
            self._carry_out(greeted(tenant))
        self._ledger.changes.publish(PlaceWanted(tenant))

    # ---- after each event

    def _settle(self) -> None:
        """Places tenants, refuses those that do not queue, and notifies those that wait."""
        if self._recovery.active:
            self._recovery.end_if_complete()
        self._ledger.changes.deliver()
        if not self._recovery.active:
            self._place()
            for refuse in self._refuse:
                while (refusal := refuse()) is not None:
                    self._carry_out(refusal)
                    self._place()
            self._executors.settle()
        self._queue_notices.send()

    def _place(self) -> None:
        self._carry_out(self._placement.run())
        for act in self._act:
            while (step := act()) is not None:
                self._carry_out(step)
                self._carry_out(self._placement.run())
        for conclude in self._conclude:
            self._carry_out(conclude())
