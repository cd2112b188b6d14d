"""The one owner of the core: one event after the other, each with its instructions carried out.

Everything here runs on one event loop and nothing waits, so that what the core decides, what is on
disk and what each stream is told never come apart.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable

import grpc

from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.events import Event, OtherEvent
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.scheduling.book import holdings, messages
from shared_pathways_service.scheduling.book.census import Census
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.scheduling.book.reserved import Reservation, moment
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.scheduling.history.expectation import HoldingTimes, expect
from shared_pathways_service.servers.resource_manager import status_report, wire
from shared_pathways_service.servers.resource_manager.followers import Followers
from shared_pathways_service.servers.resource_manager.history_table import Filter, History, Numbered
from shared_pathways_service.servers.resource_manager.meter import Meter
from shared_pathways_service.servers.resource_manager.outbox import Outbox, StreamEnded
from shared_pathways_service.servers.resource_manager.patience import Patience
from shared_pathways_service.servers.resource_manager.recording import Recording
from shared_pathways_service.servers.resource_manager.store import Store
from shared_pathways_service.servers.resource_manager.streams import TenantStreams, WorkerStreams

__all__ = ["Authority", "SteadyClock"]

#: A timer runs as a pulse, by which `Patience` knows that this process stood still.
_PULSE_S = 1.0

#: A wall clock that was set back by so much between two lives is made up for.
_SET_BACK_S = 86_400.0

#: Decisions from before that are looked at for how long slices were held.
_REMEMBERED = 5000

#: Slices that an error names at most.
_NAMED = 20


class SteadyClock:
    """Seconds since the epoch that never jump: the wall clock's at the start, then monotonic."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def go_on_from(self, last: float) -> None:
        """Begins no earlier than the clock of a former life had come to.

        Args:
          last: What that one said last. A clock that was ahead by more than a day was wrong, and is
            not gone on with.
        """
        behind = last - self()
        if 0 < behind <= _SET_BACK_S:
            self._offset += behind

    def __call__(self) -> float:
        """Returns now."""
        return self._offset + time.monotonic()


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
        self._watchers: dict[Outbox[pb.EventMessage], str] = {}
        self._followers = Followers(watcher_limit)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._patience = Patience()
        self._closed = False
        self._pulse_timer = self._loop.call_later(_PULSE_S, self._pulse, clock() + _PULSE_S)
        if store is not None:
            for decision in store.history.tail(_REMEMBERED):
                self._followers.times.hear(decision)
            self._flush()
        if not self._closed:
            self._arm()

    def close(self) -> None:
        """Takes no more events: the streams that now end are no deaths."""
        if not self._closed:
            self._flush()
        self._closed = True
        self._followers.close()
        self._pulse_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
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
            self._arm()

    def _decide(self, event: messages.ResourceManagerEvent) -> list[messages.Instruction]:
        now = self._clock()
        self._patience.heard(event, now)
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

    def release(self, released: messages.TenantReleased) -> bool:
        """Takes a tenant's slices back; False when there is no such tenant.

        Raises:
          StreamEnded: This process is about to end, and they were not.
        """
        known = self._core.knows(released.tenant, released.incarnation)
        self.handle(released)
        self._check_open(f"{released.tenant} is not released")
        return known

    def mark(
        self, marked: messages.SliceCordoned | messages.SliceDrained | messages.SliceUncordoned
    ) -> holdings.SliceStatus:
        """Takes in what an operator says of a slice; returns how it stands then.

        Raises:
          InvalidRequestError: There is no such slice.
          StreamEnded: This process is about to end, and it was not taken in.
        """
        if not self._core.knows_slice(marked.slice_id):
            known = ", ".join(self._core.slice_ids(limit=_NAMED)) or "none yet"
            raise InvalidRequestError("slice", marked.slice_id, f"one of {known}")
        self.handle(marked)
        self._check_open(f"{marked.slice_id} is as it was")
        return self._core.slice_status(marked.slice_id, self._clock())

    def reserve(self, asked: Reservation) -> None:
        """Takes in a reservation.

        Raises:
          InvalidRequestError: It cannot be.
          StreamEnded: This process is about to end, and it was not taken in.
        """
        wrong = self._core.refusal_of(asked, self._clock())
        if wrong is not None:
            field, expected = wrong
            value = getattr(asked, field)
            raise InvalidRequestError(field, moment(value) if field == "ends" else value, expected)
        self.handle(messages.ReservationMade(reservation=asked))
        self._check_open("nothing is reserved")

    def cancel(self, cancelled: messages.ReservationCancelled) -> None:
        """Ends a reservation before its time.

        Raises:
          InvalidRequestError: There is no such reservation.
          StreamEnded: This process is about to end, and it was not taken in.
        """
        if not self._core.knows_reservation(cancelled.name):
            known = [one.reservation.name for one in self.reservations[:_NAMED]]
            raise InvalidRequestError(
                "name", cancelled.name, f"one of {', '.join(known) or 'none: nothing is reserved'}"
            )
        self.handle(cancelled)
        self._check_open(f"{cancelled.name} is as it was")

    def _check_open(self, as_it_is: str) -> None:
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
        self._patience.announced(announced.kind)
        event = OtherEvent(
            name=announced.kind,
            source="rm",
            tenant=announced.tenant,
            slice=announced.slice,
            reason=announced.reason,
            fields=announced.data,
        )
        self._on_event(event)
        takers = [box for box, who in self._watchers.items() if who in {"", announced.tenant}]
        if takers:
            # A message costs more than all else here, and mostly nobody watches.
            message = wire.event_message(event)
            for outbox in takers:
                outbox.put(message)

    # ---- time

    def _due(self) -> float | None:
        """Returns when the core is to be told the time; None: not before another event."""
        deadline = self._core.next_deadline()
        return None if deadline is None else max(deadline, self._patience.until)

    def _arm(self) -> None:
        """Sets the timer to the core's next deadline, or leaves one that comes sooner.

        Most events only put deadlines off, beats above all: a timer that comes too soon once in a
        while is cheaper than another one each time.
        """
        due = None if self._closed else self._due()
        if self._timer is not None:
            if due is not None and self._timer_due <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_due = due
            self._timer = self._loop.call_later(max(0.0, due - self._clock()), self._tick)

    def _tick(self) -> None:
        # (The pulse that was due before this has run before it.)
        self._timer = None
        due = self._due()
        if due is not None and self._clock() >= due:
            self.handle(messages.Tick())
        else:
            self._arm()

    def _pulse(self, due: float) -> None:
        now = self._clock()
        self._pulse_timer = self._loop.call_later(_PULSE_S, self._pulse, now + _PULSE_S)
        if self._patience.pulsed(now, due):
            glog("W", f"This process stood still for {now - due:.1f} s; beats are heard first")
            self._arm()
