"""Owns the core: passes it one event after the other and carries out its instructions.

Everything here runs on one event loop without awaiting, so that the core's decisions, the state on
disk and the messages on each stream always agree.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

import grpc

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book import holdings, messages
from shared_pathways_service.scheduling.book.census import Census
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.scheduling.history.expectation import HoldingTimes, expect
from shared_pathways_service.servers.resource_manager import status_report
from shared_pathways_service.servers.resource_manager.core_timer import CoreTimer
from shared_pathways_service.servers.resource_manager.executor_directory import ExecutorDirectory
from shared_pathways_service.servers.resource_manager.followers import Followers, Watchers
from shared_pathways_service.servers.resource_manager.history_table import Filter, History, Numbered
from shared_pathways_service.servers.resource_manager.meter import Meter
from shared_pathways_service.servers.resource_manager.operator_requests import OperatorRequests
from shared_pathways_service.servers.resource_manager.outbox import Outbox, StreamEnded
from shared_pathways_service.servers.resource_manager.recording import Recording
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock
from shared_pathways_service.servers.resource_manager.store import Store
from shared_pathways_service.servers.resource_manager.streams import TenantStreams, WorkerStreams

__all__ = ["Authority"]

#: The number of earlier decisions from which holding times of slices are computed at the start.
_REMEMBERED = 5000


class Authority:
    """Passes events to the core and carries out its instructions."""

    def __init__(
        self,
        core: ResourceManagerCore,
        store: Store,
        workers: WorkerStreams,
        tenants: TenantStreams,
        *,
        clock: SteadyClock,
        watcher_limit: int,
        on_event: Callable[[Event], None],
        on_fatal: Callable[[str], None],
        recording: Recording,
        check_term: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes ownership of the core; must be created on the running event loop.

        Args:
          core: The core; from here on only this object may use it.
          store: Stores grants.
          workers: Streams of the workers.
          tenants: Streams of the tenants.
          clock: The clock that the core was started with.
          watcher_limit: Events that may be queued for one watcher, not counting its snapshot.
          on_event: Called with each announced event, for the log.
          on_fatal: Ends the process, because state can no longer be stored.
          recording: Records every input of the core.
          check_term: Ends this process if another head may decide.
        """
        self._core = core
        self._store = store
        self._workers = workers
        self._tenants = tenants
        self._clock = clock
        self._on_event = on_event
        self._on_fatal = on_fatal
        self.check_term = check_term
        self.recording = recording
        self.meter = Meter()
        self.operators = OperatorRequests(core, clock, self.handle, self.check_open)
        self._watchers = Watchers(self.report, watcher_limit)
        self._followers = Followers(watcher_limit)
        self._timer = CoreTimer(clock, core.next_deadline, lambda: self.handle(messages.Tick()))
        self._closed = False
        for decision in store.history.last_of_served(_REMEMBERED):
            self._followers.times.add(decision)
        self._flush()
        if not self._closed:
            self._timer.arm()

    def close(self) -> None:
        """Accepts no more events: streams that end from now on do not count as losses of peers."""
        if not self._closed:
            self._flush()
        self._closed = True
        self._followers.close()
        self._timer.close()
        # (The end of a write-ahead log is a write.)
        self.check_term()
        self._store.close()

    def handle(self, event: messages.ResourceManagerEvent) -> None:
        """Passes an event to the core and carries out its instructions, in order."""
        if self._closed:
            return
        began = time.perf_counter()
        self.check_term()
        try:
            for instruction in self._decide(event):
                self.check_term()
                self._carry_out(instruction)
            self._watchers.catch_up()
        except sqlite3.Error as error:
            self._fail(error)
        except Exception as error:
            # The event may be half applied, or half of its messages sent; the state on disk is
            # consistent, and a restart continues from it.
            self.close()
            self._on_fatal(f"cannot go on after {type(event).__name__}: {error!r}")
            raise
        finally:
            self.meter.handled(type(event).__name__, time.perf_counter() - began)
            self._timer.arm()

    def _decide(self, event: messages.ResourceManagerEvent) -> list[messages.Instruction]:
        now = self._clock()
        self._timer.patience.received(event, now)
        instructions: list[messages.Instruction] = []
        try:
            instructions = self._core.handle(event, now)
        finally:
            # Record also the event on which the core failed: recordings are read to find it.
            self.recording.add(event, now, decisions_of(instructions))
        return instructions

    async def status(self) -> pb.GetStatusResponse:
        """Returns the state of slices, tenants and the queue."""
        report = self.report()
        expected = expect(report, self.holding_times, self.now)
        return await status_report.status_message(report, expected, self.executors)

    # ---- looking back

    @property
    def now(self) -> float:
        """The time by the core's clock."""
        return self._clock()

    @property
    def history(self) -> History:
        """The history of decisions up to now.

        Raises:
          StreamEnded: This process is about to end.
        """
        self._flush()
        # Check last: if the flush above failed, the history cannot be read any more.
        if self._closed:
            error = SharedPathwaysError("the server is ending")
            raise StreamEnded(error, grpc.StatusCode.UNAVAILABLE)
        return self._store.history

    @property
    def holding_times(self) -> HoldingTimes:
        """How long slices were held in the past."""
        return self._followers.times

    @property
    def capacity(self) -> dict[str, int]:
        """The configured number of slices, by instance type."""
        return self._core.capacity

    def streams(self) -> dict[str, int]:
        """Returns the number of open streams, by purpose."""
        return {
            "worker": len(self._workers),
            "tenant": len(self._tenants),
            "watch": len(self._watchers),
            "follow": len(self._followers),
        }

    def request_of(self, tenant: str, incarnation: str) -> TenantRequest | None:
        """Returns the request of a known tenant; None: it is not known, or is another process."""
        return self._core.request_of(tenant, incarnation)

    def report(self, only: str = "") -> holdings.StatusReport:
        """Returns the core's report of slices and tenants; `only`: limited to this tenant."""
        return self._core.status(self._clock(), only)

    def census(self) -> Census:
        """Returns counts of slices and tenants, at a small part of a report's cost."""
        return self._core.census(self._clock())

    @property
    def reservations(self) -> tuple[holdings.ReservationStatus, ...]:
        """The reservations, by start."""
        return self._core.reservations

    def follow(self, wanted: Filter) -> Outbox[pb.EventMessage]:
        """Adds a follower of decisions; returns the outbox of its messages from now on."""
        return self._followers.add(wanted)

    def unfollow(self, outbox: Outbox[pb.EventMessage]) -> None:
        """Removes a follower."""
        self._followers.remove(outbox)

    def _flush(self) -> None:
        """Writes the decisions whose write was deferred."""
        if self._closed:
            return
        try:
            self._write(self._store.flush)
        except sqlite3.Error as error:
            self._fail(error)

    def _fail(self, error: sqlite3.Error) -> None:
        # Answering before the grant is on disk would let a restart grant the slice twice.
        self._closed = True
        self.close()
        self._on_fatal(f"cannot write the state file: {error}")

    def check_open(self, as_it_is: str) -> None:
        """Raises StreamEnded if events are no longer accepted; `as_it_is` begins the text."""
        if self._closed:
            error = SharedPathwaysError(f"{as_it_is}: the server is ending")
            raise StreamEnded(error, grpc.StatusCode.UNAVAILABLE)

    # ---- streams

    def join_worker(
        self, joined: messages.WorkerJoined, version: int
    ) -> Outbox[pb.WorkerInstruction]:
        """Adds a worker; returns the outbox of its stream."""
        outbox = self._workers.open(joined, version)
        self.handle(joined)
        return outbox

    @property
    def executors(self) -> ExecutorDirectory:
        """The executors of the workers."""
        return self._workers.executors

    def leave_worker(
        self, joined: messages.WorkerJoined, outbox: Outbox[pb.WorkerInstruction], reason: str
    ) -> None:
        """Handles the end of a worker's stream, unless the worker has a newer one."""
        if self._workers.close(joined, outbox):
            ended = messages.WorkerEnded(
                slice_id=joined.slice_id,
                host_index=joined.host_index,
                incarnation=joined.incarnation,
                reason=reason,
            )
            self.handle(ended)

    def join_tenant(self, asked: messages.TenantAsked, version: int) -> Outbox[pb.TenantUpdate]:
        """Handles a tenant's request; returns the outbox of its stream."""
        outbox = self._tenants.open(asked, version)
        self.handle(asked)
        return outbox

    def leave_tenant(self, asked: messages.TenantAsked, outbox: Outbox[pb.TenantUpdate]) -> None:
        """Handles the end of a tenant's stream, unless the tenant has a newer one."""
        if self._tenants.close(asked, outbox):
            name, incarnation = asked.request.name, asked.incarnation
            self.handle(messages.TenantStreamEnded(tenant=name, incarnation=incarnation))

    def watch(self, tenant: str) -> Outbox[pb.EventMessage]:
        """Adds a watcher; returns its outbox, which begins with a snapshot.

        Args:
          tenant: Only events of this tenant; empty: all events.
        """
        return self._watchers.add(tenant)

    def unwatch(self, outbox: Outbox[pb.EventMessage]) -> None:
        """Removes a watcher."""
        self._watchers.remove(outbox)

    # ---- instructions

    def _carry_out(self, instruction: messages.Instruction) -> None:
        match instruction:
            case Persist():
                self._persist(instruction)
            case messages.Announce():
                self._announce(instruction)
            case messages.WelcomeWorker() | messages.RefuseWorker():
                self._workers.send(instruction)
            case messages.AssignWorker():
                self._workers.assign(instruction)
            case messages.NotifyExecutors():
                update = self._workers.executors.update(instruction)
                self._tenants.put(instruction.tenant, update)
            case messages.WelcomeTenant():
                self._tenants.welcome(instruction)
            case messages.RefuseTenant():
                self._tenants.refuse(instruction)
            case messages.EndTenantStream():
                self._tenants.end(instruction)
            case _:
                self._tenants.send(instruction)

    def _persist(self, persist: Persist) -> None:
        self._write(lambda: self._store.write(persist))
        if self._store.has_waiting:
            self._followers.flush_later(self._flush)

    def _write(self, write: Callable[[], list[Numbered]]) -> None:
        self.check_term()
        began = time.perf_counter()
        written = write()
        if written:
            self.meter.wrote(written, time.perf_counter() - began)
            self._followers.publish(written)

    def _announce(self, announced: messages.Announce) -> None:
        event = announced.make()
        self._timer.patience.announced(event)
        self.meter.announced(event)
        self._on_event(event)
        self._watchers.announce(event)
