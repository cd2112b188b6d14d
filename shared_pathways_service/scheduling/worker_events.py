"""Handles workers' events, and changes the states of their slices accordingly."""

from __future__ import annotations

import math
from functools import partial

from shared_pathways_service.events.manager_events import (
    PhysicalSliceEvent,
    PhysicalSliceLost,
    SliceStarting,
)
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import announcements
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    RefuseWorker,
    WelcomeWorker,
    WorkerBeat,
    WorkerEnded,
    WorkerJoined,
)
from shared_pathways_service.scheduling.book.records import Pool, Slice, Worker
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.book.states import SLICE_EVENTS, SliceState

__all__ = ["Workers"]


class Workers:
    """Handles workers that join, beat, end and hang: slices become ready or are lost."""

    def __init__(
        self, config: RmConfig, ledger: Ledger, speaker: Speaker, deadlines: Deadlines
    ) -> None:
        self._hung_after_s = config.hung_after_s
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines

    # ---- events

    def joined(self, event: WorkerJoined) -> None:
        """Admits a worker, or refuses it."""
        pool = self._ledger.pools.get(event.instance_type)
        if pool is None:
            types = ", ".join(other.name for other in self._ledger.pools.values())
            self._refuse(event, f"{event.instance_type} is none of this service's types: {types}")
        elif not 0 <= event.host_index < pool.hosts:
            self._refuse(event, f"a slice of {pool.name} has {pool.hosts} host(s), from 0")
        elif (found := self._find_place(event, pool)) is not None:
            self._seat(event, found)

    def beat(self, event: WorkerBeat) -> None:
        """Notes that a worker is alive."""
        worker = self.find(event.slice_id, event.host_index, event.incarnation)
        if worker is not None:
            worker.beat_at = self._ledger.now

    def ended(self, event: WorkerEnded) -> None:
        """Notes that a worker is dead."""
        worker = self.find(event.slice_id, event.host_index, event.incarnation)
        if worker is not None:
            self._unseat(worker, f"is gone: {event.reason}" if event.reason else "is gone")

    def lose(self, lost: Slice, reason: str) -> None:
        """Marks a slice as lost, and takes it from its holder."""
        self._ledger.void(lost, math.inf)
        in_use = lost.state is SliceState.READY or lost.tenant is not None
        starts_on = lost.state is SliceState.STARTING and not lost.empty
        if not in_use and (starts_on or lost.state is SliceState.LOST):
            return
        self._ledger.set_state(lost, SliceState.LOST, reason)
        if lost.kept_for is not None:
            self._ledger.keep_no_more(lost)
        self._announce(PhysicalSliceLost, lost, reason)
        if lost.tenant is not None:
            self.unplace(lost, reason)

    def lose_executor(
        self, held: Slice, reason: str, *, host: int | None, exit_code: int | None = None
    ) -> None:
        """Takes a slice from its holder, whose executor there ended or cannot be used."""
        self._ledger.decide_held(held, DecisionKind.EXECUTOR_LOST, reason)
        self._speaker.announce(
            announcements.executor_lost(held, reason, host=host, exit_code=exit_code)
        )
        held.note_failure(self._ledger.now)
        self.unplace(held, reason)

    def unplace(self, held: Slice, reason: str, *, related: str = "") -> None:
        """Takes a slice from its holder, and puts the notified holder first in line for another."""
        tenant, index, generation = held.tenant, held.index, held.generation
        assert tenant is not None
        self._ledger.let_go(held, DecisionKind.UNPLACED, reason, related=related)
        self._ledger.want_repair(tenant, index)
        self._speaker.unplaced(tenant, index, held.id, generation, reason)

    # ---- places

    def _find_place(self, event: WorkerJoined, pool: Pool) -> Slice | None:
        found = self._ledger.slices.get(event.slice_id)
        if found is not None and found.pool is not pool and _vacant(found):
            self._ledger.remove_slice(found)
            found = None
        if found is None:
            return self._add_slice(event, pool)
        if found.pool is not pool:
            self._refuse(event, f"{found.id} is a slice of {found.pool.name}")
            return None
        return found

    def _add_slice(self, event: WorkerJoined, pool: Pool) -> Slice | None:
        if len(pool.slices) >= pool.count:
            # A slice that came back under another name takes the place of one that is gone.
            vacant = next(filter(_vacant, pool.slices.values()), None)
            if vacant is None:
                self._refuse(event, f"all {pool.count} slices of {pool.name} are there already")
                return None
            self._ledger.remove_slice(vacant)
        return self._ledger.add_slice(event.slice_id, pool)

    def _seat(self, event: WorkerJoined, into: Slice) -> None:
        self._unseat_former(event, into)
        worker = Worker(
            slice=into,
            host_index=event.host_index,
            incarnation=event.incarnation,
            address=event.address,
            host=event.host,
            node_pool=event.node_pool,
            pid=event.pid,
            beat_at=self._ledger.now,
        )
        self._ledger.void(into, math.inf if event.welcomed_at is None else event.welcomed_at)
        first = into.empty
        into.workers[event.host_index] = worker
        self._ledger.hosts_changed(into)
        self._speaker.say(
            WelcomeWorker(
                into.id, event.host_index, event.incarnation, self._ledger.last_generation
            )
        )
        self._deadlines.add(
            lambda: worker.beat_at + self._hung_after_s if worker.alive else None,
            lambda: self._hung(worker),
        )
        if into.complete:
            self._ledger.enter(into)
            self._ledger.rely(into)
            self._announce(SLICE_EVENTS[into.state], into)
        elif first or into.state is not SliceState.STARTING:
            self._ledger.set_state(into, SliceState.STARTING)
            self._announce(SliceStarting, into)

    def _unseat_former(self, event: WorkerJoined, into: Slice) -> None:
        """Ends the worker that had this worker's place, before or since the manager's restart."""
        former = into.workers[event.host_index]
        if former is not None:
            if former.incarnation != event.incarnation:
                self._refuse(former, f"another worker has taken the place of {_name(former)}")
            self._unseat(former, "was replaced")
        elif _is_another(event, into):
            name = f"worker {event.host_index} of {into.id}"
            self.lose(into, f"{name} was replaced while the resource manager was away")

    def find(self, slice_id: str, host_index: int, incarnation: str) -> Worker | None:
        """Returns an admitted worker; None: it is not known, or was replaced."""
        found = self._ledger.slices.get(slice_id)
        if found is None or not 0 <= host_index < len(found.workers):
            return None
        worker = found.workers[host_index]
        if worker is None or worker.incarnation != incarnation:
            return None
        return worker

    def _unseat(self, worker: Worker, what: str) -> None:
        worker.alive = False
        worker.slice.workers[worker.host_index] = None
        self.lose(worker.slice, f"{_name(worker)} {what}")

    def _hung(self, worker: Worker) -> None:
        what = f"is hung: no beat for {self._hung_after_s:g} s"
        self._refuse(worker, f"{_name(worker)} {what}")
        self._unseat(worker, what)

    # ---- words

    def _refuse(self, who: WorkerJoined | Worker, reason: str) -> None:
        slice_id = who.slice.id if isinstance(who, Worker) else who.slice_id
        self._speaker.say(
            RefuseWorker(
                slice_id=slice_id,
                host_index=who.host_index,
                incarnation=who.incarnation,
                reason=reason,
            )
        )

    def _announce(
        self, event: type[PhysicalSliceEvent], about: Slice, reason: str | None = None
    ) -> None:
        pool = about.pool
        self._speaker.announce(
            partial(
                event,
                slice=about.id,
                reason=reason,
                instance_type=pool.name,
                ready=pool.ready,
                count=pool.count,
            )
        )


def _vacant(about: Slice) -> bool:
    return about.tenant is None and about.empty


def _is_another(event: WorkerJoined, into: Slice) -> bool:
    """Whether the holder of a slice relies on another worker than the one that joins."""
    if into.tenant is None:
        return False
    if into.relied_on:
        return into.relied_on[event.host_index] != event.incarnation
    # A claim names the slice's holder, not the workers it relies on: never on a younger process.
    return event.welcomed_at is None or into.generation <= event.welcomed_at


def _name(worker: Worker) -> str:
    return f"worker {worker.host_index} of {worker.slice.id}"
