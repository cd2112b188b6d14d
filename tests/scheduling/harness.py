"""A resource manager's core with a disk, driven event by event; its state is checked after each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events import Event
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.holdings import SliceStatus, TenantStatus
from shared_pathways_service.scheduling.book.persisted import Persist, PersistedGrant, Restored
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import VirtualSliceState
from shared_pathways_service.scheduling.core import POLICIES, ResourceManagerCore
from shared_pathways_service.scheduling.policies.policy import MakePolicy

SMALL = InstanceType.parse("tpuv6e:2x2")
OTHER = InstanceType.parse("tpuv5e:2x2")
TWO_HOSTS = InstanceType.parse("tpuv6e:2x4")

T = TypeVar("T")


def events_of(instructions: Iterable[m.Instruction]) -> list[Event]:
    """Returns the events that instructions announce."""
    return [one.make() for one in instructions if isinstance(one, m.Announce)]


class Rm:
    """One service.

    Attributes:
      now: The simulated time; `after` moves it.
      said: Everything instructed since it was last looked at.
    """

    def __init__(
        self,
        slices: int | dict[InstanceType, int] = 2,
        *,
        ready: bool = True,
        restored: Restored | None = None,
        now: float = 1e9,
        policies: Sequence[MakePolicy] = POLICIES,
        **config: Any,
    ) -> None:
        counts = slices if isinstance(slices, dict) else {SMALL: slices}
        # (As of a service: a request that fits once all slices are ready waits for them.)
        self.config = RmConfig(slices=counts, **{"starting_grace_s": 30.0, **config})
        self.now = now
        self.grants: dict[str, PersistedGrant] = {
            g.request.name: g for g in (restored or Restored()).grants
        }
        self.restored = restored or Restored()
        self.marks = {one.slice_id: one for one in self.restored.marks}
        self.reservations = {one.name: one for one in self.restored.reservations}
        self.said: list[m.Instruction] = []
        self.policies = policies
        self.core = ResourceManagerCore(self.config, restored, now, policies)
        self.asked: dict[str, m.TenantAsked] = {}
        self.welcomed: dict[str, int] = {}
        self.do(m.Tick())
        if ready:
            for kind, count in counts.items():
                for index in range(count):
                    for host in range(kind.hosts):
                        self.join(name(kind, index), host, kind=kind)
        self.said.clear()

    def do(self, event: m.ResourceManagerEvent) -> list[m.Instruction]:
        instructions = self.core.handle(event, self.now)
        self.core.validate_state()
        for one in instructions:
            if isinstance(one, Persist):
                assert one is instructions[0]
                self.grants.update({grant.request.name: grant for grant in one.grants})
                for gone in one.forgotten:
                    del self.grants[gone]
                self.marks.update({marked.slice_id: marked for marked in one.marks})
                self.reservations.update({new.name: new for new in one.reservations})
                for gone in one.reservations_over:
                    del self.reservations[gone]
                self.restored = Restored(
                    grants=tuple(self.grants.values()),
                    last_generation=one.last_generation,
                    last_order=one.last_order,
                    state_lost=one.state_lost,
                    marks=tuple(self.marks.values()),
                    reservations=tuple(self.reservations.values()),
                )
        self.said += instructions
        return instructions

    def after(self, seconds: float) -> None:
        """Lets time pass, ticking whenever the core wants to; workers beat."""
        end = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.beat()
            self.do(m.Tick())
        self.now = end

    def restarted(self, **changes: Any) -> Rm:
        """Returns the service after a kill of its resource manager, nobody there yet."""
        config = {f.name: getattr(self.config, f.name) for f in dataclasses.fields(self.config)}
        config.update(changes)
        restored = None if changes.get("state_lost") else self.restored
        fresh = Rm(
            ready=False, restored=restored, now=self.now + 1.0, policies=self.policies, **config
        )
        fresh.asked = dict(self.asked)
        fresh.welcomed = dict(self.welcomed)
        return fresh

    # ---- workers

    def join(
        self, slice_id: str, host: int = 0, *, kind: InstanceType = SMALL, life: str = "1"
    ) -> list[m.Instruction]:
        incarnation = f"{slice_id}/{host}/{life}"
        said = self.do(
            m.WorkerJoined(
                slice_id=slice_id,
                instance_type=kind,
                host_index=host,
                incarnation=incarnation,
                welcomed_at=self.welcomed.get(incarnation),
            )
        )
        for one in said:
            if isinstance(one, m.WelcomeWorker):
                self.welcomed.setdefault(one.incarnation, one.last_generation)
        return said

    def end_worker(self, slice_id: str, host: int = 0, *, life: str = "1") -> None:
        self.do(
            m.WorkerEnded(
                slice_id=slice_id,
                host_index=host,
                incarnation=f"{slice_id}/{host}/{life}",
                reason="its process ended",
            )
        )

    def beat(self, *silent: str) -> None:
        for about in self.core.status(self.now).slices:
            for worker in about.workers:
                if about.id not in silent:
                    self.do(
                        m.WorkerBeat(
                            slice_id=about.id,
                            host_index=worker.host_index,
                            incarnation=worker.incarnation,
                        )
                    )

    # ---- reservations

    def reserve(
        self,
        count: int,
        *,
        user: str = "",
        team: str = "",
        starts_in: float = 0.0,
        ends_in: float,
        kind: InstanceType = SMALL,
    ) -> str:
        """Reserves slices; returns the reservation's name."""
        name = f"res-{len(self.reservations)}"
        made = Reservation(
            name=name,
            instance_type=str(kind),
            count=count,
            user=user,
            team=team,
            starts=self.now + starts_in,
            ends=self.now + ends_in,
        )
        self.do(m.ReservationMade(reservation=made))
        return name

    # ---- tenants

    def ask(
        self,
        tenant: str,
        wants: int | tuple[InstanceType, ...] = 1,
        *,
        elastic: int = 0,
        priority: int = 0,
        queue: float | None = None,
        life: str = "1",
        user: str = "",
        team: str = "",
        lifetime: float | None = None,
    ) -> list[m.Instruction]:
        self.asked[tenant] = m.TenantAsked(
            request=TenantRequest(
                name=tenant,
                virtual_slices=wants if isinstance(wants, tuple) else (SMALL,) * wants,
                elastic_slices=elastic,
                priority=priority,
                queue_timeout_s=queue,
                user=user or tenant,
                team=team,
                max_lifetime_s=lifetime,
                host="laptop",
            ),
            incarnation=f"{tenant}/{life}",
        )
        return self.do(self.asked[tenant])

    def come_back(self, tenant: str, *claims: tuple[int, str, int]) -> list[m.Instruction]:
        made = tuple(
            m.Claim(virtual_index=index, slice_id=slice_id, generation=generation)
            for index, slice_id, generation in claims
        )
        return self.do(dataclasses.replace(self.asked[tenant], claims=made))

    def tell(self, tenant: str, count: int, idle_s: float = 0.0) -> list[m.Instruction]:
        """Has a proxy tell how often it was seen at work, and how long ago the last time was."""
        return self.do(
            m.TenantActivity(tenant=tenant, incarnation=f"{tenant}/1", count=count, idle_s=idle_s)
        )

    def cut(self, tenant: str) -> None:
        self.do(m.TenantStreamEnded(tenant=tenant, incarnation=f"{tenant}/1"))

    def cordon(self, slice_id: str) -> None:
        self.do(m.SliceCordoned(slice_id=slice_id))

    def uncordon(self, slice_id: str) -> None:
        self.do(m.SliceUncordoned(slice_id=slice_id))

    def drain(self, slice_id: str) -> None:
        self.do(m.SliceDrained(slice_id=slice_id))

    def release(self, tenant: str) -> None:
        self.do(m.TenantReleased(tenant=tenant, reason="its owner let go"))

    # ---- what was said, and what is

    def heard(self, tenant: str, kind: type[T]) -> list[T]:
        """Returns what a tenant was told, of one kind, since `said` was cleared."""
        return [
            one
            for one in self.said
            if isinstance(one, kind)
            and not isinstance(one, m.Announce)
            and getattr(one, "tenant", None) == tenant
        ]

    def announced(self, *kinds: str) -> list[str]:
        found = [event.kind for event in events_of(self.said)]
        return [kind for kind in found if not kinds or kind in kinds]

    def refusal(self, tenant: str) -> m.RefuseTenant:
        (refused,) = self.heard(tenant, m.RefuseTenant)
        return refused

    def placed(self, tenant: str) -> dict[int, tuple[str, int]]:
        return {
            one.index: (one.slice_id, one.generation)
            for one in self.tenant(tenant).slices
            if one.state is VirtualSliceState.PLACED
        }

    def on(self, tenant: str) -> list[str]:
        """Returns the slices that a tenant is on, by virtual index."""
        return [slice_id for _, (slice_id, _) in sorted(self.placed(tenant).items())]

    def tenant(self, tenant: str) -> TenantStatus:
        return next(one for one in self.core.status(self.now).tenants if one.name == tenant)

    def slice(self, slice_id: str) -> SliceStatus:
        return next(one for one in self.core.status(self.now).slices if one.id == slice_id)

    @property
    def tenants(self) -> list[str]:
        return [one.name for one in self.core.status(self.now).tenants]

    @property
    def queue(self) -> list[str]:
        return [one.tenant for one in self.core.status(self.now).queue]

    @property
    def state(self) -> str:
        return self.core.status(self.now).state


def name(kind: InstanceType, index: int) -> str:
    return f"slice-{index}" if kind is SMALL else f"{kind.family}-{kind.topology}-{index}"
