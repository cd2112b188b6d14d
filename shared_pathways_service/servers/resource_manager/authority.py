"""The one owner of the core: one event after the other, each with its instructions carried out.

Everything here runs on one event loop and nothing waits, so that what the core decides, what is on
disk and what each stream is told never come apart.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

import grpc

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book import holdings, messages
from shared_pathways_service.scheduling.book.census import Census
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.scheduling.history.expectation import HoldingTimes, expect
from shared_pathways_service.servers.resource_manager import status_report, wire
from shared_pathways_service.servers.resource_manager.core_timer import CoreTimer
from shared_pathways_service.servers.resource_manager.followers import Followers
from shared_pathways_service.servers.resource_manager.history_table import Filter, History, Numbered
from shared_pathways_service.servers.resource_manager.meter import Meter
from shared_pathways_service.servers.resource_manager.operator_requests import OperatorRequests
from shared_pathways_service.servers.resource_manager.outbox import Outbox, StreamEnded
from shared_pathways_service.servers.resource_manager.recording import Recording
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock
from shared_pathways_service.servers.resource_manager.store import Store
from shared_pathways_service.servers.resource_manager.streams import TenantStreams, WorkerStreams

__all__ = ["Authority"]

#: Decisions from before that are looked at for how long slices were held.
_REMEMBERED = 5000


class Authority:
    """Hands events to the core and carries out its instructions."""

    def __init__(
        self,
        core: ResourceManagerCore,
        store: Store | None,
        workers: WorkerStreams,
        tenants: TenantStreams,
        *,
        clock: SteadyClock,
        watcher_limit: int,
        on_event: Callable[[Event], None],
        on_fatal: Callable[[str], None],
        recording: Recording | None = None,
    ) -> None:
        """Takes the core over; must be made on the running event loop.

        Args:
          core: Nobody else touches it from here on.
          store: Where grants are kept; None: nowhere.
          workers: Their streams.
          tenants: Theirs.
          clock: What the core was started with.
          watcher_limit: Events that may wait for one watcher, its snapshot not counted.
          on_event: Gets each announced event, for the log.
          on_fatal: Ends the process: nothing can be kept any more.
          recording: Gets all that goes into the core; None: nothing is kept of it.
        """
        self._core = core
        self._store = store
        self._workers = workers
        self._tenants = tenants
        self._clock = clock
        self._watcher_limit = watcher_limit
        self._on_event = on_event
        self._on_fatal = on_fatal
        self.recording = recording or Recording()
        self.meter = Meter()
        self.operators = OperatorRequests(core, clock, self.handle, self.check_open)
        self._watchers: dict[Outbox[pb.EventMessage], str] = {}
        self._followers = Followers(watcher_limit)
        self._timer = CoreTimer(clock, core.next_deadline, lambda: self.handle(messages.Tick()))
        self._closed = False
        if store is not None:
            for decision in store.history.tail(_REMEMBERED):
                self._followers.times.hear(decision)
            self._flush()
        if not self._closed:
            self._timer.arm()

    def close(self) -> None:
        """Takes no more events: the streams that now end are no deaths."""
        if not self._closed:
            self._flush()
        self._closed = True
        self._followers.close()
        self._timer.close()
        if self._store is not None:
            self._store.close()

    def handle(self, event: messages.ResourceManagerEvent) -> None:
        """Lets the core decide, and does what it says, in order."""
        if self._closed:
            return
        began = time.perf_counter()
        try:
            for instruction in self._decide(event):
                self._carry_out(instruction)
        except sqlite3.Error as error:
            self._fail(error)
        except Exception as error:
            # Half an event may be in the books, or half of what it means be told; what is on disk
            # is whole, and a restart goes on from there.
            self.close()
            self._on_fatal(f"cannot go on after {type(event).__name__}: {error!r}")
            raise
        finally:
            self.meter.handled(type(event).__name__, time.perf_counter() - began)
            self._timer.arm()

    def _decide(self, event: messages.ResourceManagerEvent) -> list[messages.Instruction]:
        now = self._clock()
        self._timer.patience.heard(event, now)
        instructions: list[messages.Instruction] = []
        try:
            instructions = self._core.handle(event, now)
        finally:
            # Also what the core stumbled over: that is what logs are read for.
            self.recording.add(event, now, decisions_of(instructions))
        return instructions

    async def status(self) -> pb.GetStatusResponse:
        """Returns who holds what, and who waits for what."""
        report = self.report()
        expected = expect(report, self.holding_times, self.now)
        return await status_report.status_message(report, expected)

    # ---- looking back

    @property
    def now(self) -> float:
        """The time by the core's clock."""
        return self._clock()

    @property
    def history(self) -> History:
        """What was decided, to this moment.

        Raises:
          StreamEnded: This process is about to end, or keeps nothing.
        """
        self._flush()
        # (Looked at last: where that cannot be written, nothing can be read any more.)
        if self._store is None or self._closed:
            error = SharedPathwaysError("there is no history, or the server is ending")
            raise StreamEnded(error, grpc.StatusCode.UNAVAILABLE)
        return self._store.history

    @property
    def holding_times(self) -> HoldingTimes:
        """How long slices were held before."""
        return self._followers.times

    @property
    def capacity(self) -> dict[str, int]:
        """How many slices the service should have, by instance type."""
        return self._core.capacity

    def streams(self) -> dict[str, int]:
        """Returns how many streams are open, by what they are for."""
        return {
            "worker": len(self._workers),
            "tenant": len(self._tenants),
            "watch": len(self._watchers),
            "follow": len(self._followers),
        }

    def report(self, only: str = "") -> holdings.StatusReport:
        """Returns who holds what, as the core says; of one tenant `only`, if one is named."""
        return self._core.status(self._clock(), only)

    def census(self) -> Census:
        """Returns how many there are of what, which costs a small part of a report."""
        return self._core.census(self._clock())

    @property
    def reservations(self) -> tuple[holdings.ReservationStatus, ...]:
        """What is reserved, in the order of the starts."""
        return self._core.reservations

    def follow(self, wanted: Filter) -> Outbox[pb.EventMessage]:
        """Returns what a new follower of decisions is to be sent from here on."""
        return self._followers.add(wanted)

    def unfollow(self, outbox: Outbox[pb.EventMessage]) -> None:
        """Forgets a follower."""
        self._followers.remove(outbox)

    def _flush(self) -> None:
        """Writes the decisions that waited for a better occasion."""
        if self._store is None or self._closed:
            return
        try:
            self._write(self._store.flush)
        except sqlite3.Error as error:
            self._fail(error)

    def _fail(self, error: sqlite3.Error) -> None:
        # To answer what is not on disk would let a restart grant it twice.
        self._closed = True
        self.close()
        self._on_fatal(f"cannot write the state file: {error}")

    def check_open(self, as_it_is: str) -> None:
        """Raises StreamEnded if events are not taken any more; `as_it_is` begins the text."""
        if self._closed:
            error = SharedPathwaysError(f"{as_it_is}: the server is ending")
            raise StreamEnded(error, grpc.StatusCode.UNAVAILABLE)

    # ---- streams

    def join_worker(
        self, joined: messages.WorkerJoined, version: int
    ) -> Outbox[pb.WorkerInstruction]:
        """Lets a worker in; returns what its stream is to be sent."""
        outbox = self._workers.open(joined, version)
        self.handle(joined)
        return outbox

    def leave_worker(
        self, joined: messages.WorkerJoined, outbox: Outbox[pb.WorkerInstruction], reason: str
    ) -> None:
        """Takes note that a worker's stream ended, unless it has a newer one."""
        if self._workers.close(joined, outbox):
            ended = messages.WorkerEnded(
                slice_id=joined.slice_id,
                host_index=joined.host_index,
                incarnation=joined.incarnation,
                reason=reason,
            )
            self.handle(ended)

    def join_tenant(self, asked: messages.TenantAsked, version: int) -> Outbox[pb.TenantUpdate]:
        """Hears a tenant's request; returns what its stream is to be sent."""
        outbox = self._tenants.open(asked, version)
        self.handle(asked)
        return outbox

    def leave_tenant(self, asked: messages.TenantAsked, outbox: Outbox[pb.TenantUpdate]) -> None:
        """Takes note that a tenant's stream ended, unless it has a newer one."""
        if self._tenants.close(asked, outbox):
            ended = messages.TenantStreamEnded(tenant=asked.tenant, incarnation=asked.incarnation)
            self.handle(ended)

    def watch(self, tenant: str) -> Outbox[pb.EventMessage]:
        """Returns what a new watcher is to be sent: first how things stand.

        Args:
          tenant: Only what concerns this one; empty: everything.
        """
        events = status_report.snapshot_events(self.report(tenant))
        snapshot = [
            wire.event_message(event, snapshot=True)
            for event in events
            if tenant in {"", event.tenant}
        ]
        outbox = Outbox(self._watcher_limit, snapshot)
        self._watchers[outbox] = tenant
        return outbox

    def unwatch(self, outbox: Outbox[pb.EventMessage]) -> None:
        """Forgets a watcher."""
        self._watchers.pop(outbox, None)

    # ---- instructions

    def _carry_out(self, instruction: messages.Instruction) -> None:
        match instruction:
            case Persist():
                self._persist(instruction)
            case messages.Announce():
                self._announce(instruction)
            case messages.WelcomeWorker() | messages.RefuseWorker():
                self._workers.tell(instruction)
            case messages.WelcomeTenant():
                self._tenants.welcome(instruction)
            case messages.RefuseTenant():
                self._tenants.refuse(instruction)
            case messages.EndTenantStream():
                self._tenants.end(instruction)
            case _:
                self._tenants.tell(instruction)

    def _persist(self, persist: Persist) -> None:
        store = self._store
        if store is None:
            return
        self._write(lambda: store.write(persist))
        if store.has_waiting:
            self._followers.flush_later(self._flush)

    def _write(self, write: Callable[[], list[Numbered]]) -> None:
        began = time.perf_counter()
        written = write()
        if written:
            self.meter.wrote(written, time.perf_counter() - began)
            self._followers.tell(written)

    def _announce(self, announced: messages.Announce) -> None:
        event = announced.make()
        self._timer.patience.announced(event)
        self._on_event(event)
        takers = [box for box, who in self._watchers.items() if who in {"", event.tenant}]
        if takers:
            # A message costs more than all else here, and mostly nobody watches.
            message = wire.event_message(event)
            for outbox in takers:
                outbox.put(message)
