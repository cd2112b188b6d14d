"""Assigns hosts to the holders of their slices, and tells holders where their executors serve.

An executor is the process that owns a host's devices for one tenant and one generation. Its worker
starts it when it is assigned a generation, and ends it when it is assigned another one, or none.
"""

from __future__ import annotations

import math

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import announcements
from shared_pathways_service.scheduling.book.holdings import executors_serve
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    AssignWorker,
    ExecutorEnded,
    ExecutorServing,
    NotifyExecutors,
)
from shared_pathways_service.scheduling.book.records import Slice, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.unreachable_placements import UnreachablePlacements
from shared_pathways_service.scheduling.worker_events import Workers

__all__ = ["ExecutorAssignments"]


class ExecutorAssignments:
    """Keeps what workers are assigned in accordance with the book."""

    def __init__(
        self,
        ledger: Ledger,
        speaker: Speaker,
        workers: Workers,
        unreachable: UnreachablePlacements,
    ) -> None:
        self._ledger = ledger
        self._speaker = speaker
        self._workers = workers
        self._unreachable = unreachable

    # ---- events

    def serving(self, event: ExecutorServing) -> None:
        """Notes that the executor of a generation serves."""
        worker = self._workers.find(event.slice_id, event.host_index, event.incarnation)
        if worker is not None:
            worker.beat_at = self._ledger.now  # workers beat only when nothing else is to be sent
            worker.serves = event.generation
            self._ledger.hosts_changed(worker.slice)

    def ended(self, event: ExecutorEnded) -> None:
        """Takes a slice from its holder if an executor of the placement ended by itself."""
        worker = self._workers.find(event.slice_id, event.host_index, event.incarnation)
        if worker is None:
            return
        worker.beat_at = self._ledger.now
        if worker.serves == event.generation:
            worker.serves = 0
        about = worker.slice
        self._ledger.void(about, event.generation)
        if self._unreachable.explains(event):
            return
        if about.tenant is not None and about.generation == event.generation:
            reason = f"the executor of host {event.host_index} of {about.id} {event.reason}"
            if not about.tenant.connected:
                reason = f"its proxy is gone, and {reason}"
            self._workers.lose_executor(
                about, reason, host=event.host_index, exit_code=event.exit_code
            )

    def greet(self, tenant: Tenant) -> None:
        """Has a proxy that came back told where its executors serve."""
        for held in tenant.placed.values():
            self._ledger.hosts_changed(held)

    # ---- after each event

    def settle(self) -> None:
        """Assigns hosts whose slice has another holder, and notifies holders.

        Not to be called during a recovery, when holders may not be known yet.
        """
        for about in self._ledger.take_changed_hosts():
            self._assign(about)
            self._notify(about)

    def _assign(self, about: Slice) -> None:
        tenant = about.tenant
        generation = 0 if tenant is None else about.generation
        for worker in about.workers:
            if worker is None or worker.assigned == generation:
                continue
            worker.assigned = generation
            if tenant is None:
                # What an earlier holder had there ends by this.
                self._ledger.void(about, math.inf)
            self._speaker.say(
                AssignWorker(
                    slice_id=about.id,
                    host_index=worker.host_index,
                    incarnation=worker.incarnation,
                    instance_type=about.pool.kind,
                    tenant="" if tenant is None else tenant.name,
                    generation=generation,
                )
            )

    def _notify(self, about: Slice) -> None:
        tenant = about.tenant
        if tenant is None or not executors_serve(about):
            return
        self._note_start(about)
        if tenant.connected:
            self._speaker.say(
                NotifyExecutors(
                    tenant=tenant.name,
                    virtual_index=about.index,
                    slice_id=about.id,
                    generation=about.generation,
                )
            )

    def _note_start(self, about: Slice) -> None:
        if about in self._ledger.starting:
            self._ledger.note_start(about)
            self._ledger.decide_held(about, DecisionKind.EXECUTOR_STARTED)
            # The clock may have been set back over a restart.
            seconds = max(0.0, self._ledger.now - about.held_since)
            self._speaker.announce(announcements.executor_started(about, seconds))
