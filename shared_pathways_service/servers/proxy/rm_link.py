"""The proxy's session with the resource manager (RM): requests the tenant's slices, follows them.

If the RM is gone, work continues; the session is opened again with the proxy's placements as
claims.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable

from shared_pathways_service.api.validation import fitting_text
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.events import Event
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_message
from shared_pathways_service.protocol.proxy_status_pb2 import GetCountersResponse
from shared_pathways_service.protocol.tenant_requests import write_older_fields
from shared_pathways_service.rmclient.blocking_stream import BlockingStream
from shared_pathways_service.rmclient.failures import Refusal
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.proxy.activity import ActivityReporter
from shared_pathways_service.servers.proxy.counters_reporter import CountersReporter
from shared_pathways_service.servers.proxy.execution.virtual_slices import SliceChange, SliceTable
from shared_pathways_service.servers.proxy.exits import EXIT_FAILED, EXIT_REFUSED, Ending
from shared_pathways_service.servers.proxy.loss_reports import LossReports

__all__ = ["ResourceManagerLink"]

#: Events that wait for an RM, the newest.
_MOST_WAITING = 8


class ResourceManagerLink:
    """Registers the tenant with the RM, and keeps the slice table up to date.

    Args:
      address: The RM's address: ``host:port`` or ``unix:/path``.
      hello: The request; versions and claims are filled in here.
      slices: The table that gets the placements.
      ending: Ends the process after a refusal.
      token: The token for the RM; None: none.
      on_memory_limit: Called with the RM's limit of bytes per device.
      reporter: Reports activity to the RM if it asks; None: no reports.
      identity: Returns the token that proves the tenant's user; it is read for each hello, as the
        kubelet replaces it.
      counters: Reports counters to the RM if it asks; None: no reports.
      on_executors: Called with the executors of a placement, which the RM may repeat.
      losses: Reports placements that cannot be used to the RM.
    """

    def __init__(
        self,
        address: str,
        hello: pb.TenantHello,
        slices: SliceTable,
        ending: Ending,
        token: str | None,
        *,
        on_memory_limit: Callable[[int], None] = lambda _limit: None,
        reporter: ActivityReporter | None = None,
        identity: Callable[[], str] = str,
        counters: CountersReporter | None = None,
        on_executors: Callable[[pb.PlacementExecutors], None] = lambda _executors: None,
        losses: LossReports | None = None,
    ) -> None:
        self._address = address
        self._hello = hello
        self._slices = slices
        self._ending = ending
        self._on_memory_limit = on_memory_limit
        self._reporter = reporter
        self._identity = identity
        self._counters = counters
        self._on_executors = on_executors
        self._losses = losses or LossReports()
        self._began = time.monotonic()
        self._idle_count: int | None = None
        self._events: collections.deque[Event] = collections.deque(maxlen=_MOST_WAITING)
        self._takes_events = False
        self._slices.granted.clear()
        self._stream: BlockingStream[pb.TenantMessage, pb.TenantUpdate] = BlockingStream(
            address, lambda stub: stub.TenantSession, self, token=token, name="rm-link"
        )

    def start(self) -> None:
        """Starts calling the RM."""
        self._stream.start()

    def report(self, event: Event) -> None:
        """Reports an event about this proxy, on any thread; events wait for an RM that takes them.

        Args:
          event: A `ProxyReport`.
        """
        glog("W", f"{event.kind}: {event.reason}")
        self._events.append(event)
        self._send_events()

    def close(self, reason: str) -> None:
        """Releases the slices and ends the stream."""
        for reporter in (self._reporter, self._counters):
            if reporter is not None:
                reporter.close()
        # (A reason that is too long or has several lines would be refused, and the slices kept.)
        self._stream.close(pb.TenantMessage(bye=pb.TenantBye(reason=fitting_text(reason))))

    # ---- called by the stream

    def greeting(self) -> pb.TenantMessage:
        """Returns the hello, with the current placements."""
        glog("I", f"Signaling to RM {self._address}")
        return pb.TenantMessage(hello=self._tenant_hello())

    def on_message(self, message: pb.TenantUpdate) -> None:
        """Handles an update."""
        kind = message.WhichOneof("update")
        if kind == "welcome":
            self._on_welcome(message.welcome)
        elif kind == "queued":
            queued = message.queued
            # Else an RM that lost its state would take a preempted tenant for one that only waits
            # for replacements of failed slices.
            self._slices.granted.clear()
            self._idle_count = None
            if self._reporter is not None:
                self._reporter.calm()
            holders = "; ".join(queued.holders)
            glog(
                "I",
                f"Waiting for placement at position {queued.position}: {queued.reason}"
                + (f" (held by {holders})" if holders else ""),
            )
        elif kind == "placement":
            self._place(message.placement)
        elif kind == "executors":
            self._on_executors(message.executors)
        elif kind == "running":
            running = message.running
            self._slices.granted.set()
            self._idle_count = None
            self._ask(hurried=False)
            glog("I", f"All placements done: {running.placed} of {running.wanted} slices placed")
        elif kind == "preempting":
            _log_notice(message.preempting)
        elif kind == "idle":
            self._on_idle(message.idle)
        elif kind == "refused":
            self._on_refusal(message.refused)

    def on_end(self) -> None:
        """Stops reports: the next stream may not ask for them."""
        self._takes_events = False
        for reporter in (self._reporter, self._counters, self._losses):
            if reporter is not None:
                reporter.end()

    def on_lost(self, reason: str, pause_s: float) -> None:
        """Logs that the RM is gone."""
        glog("W", f"Lost the RM ({reason}); work goes on, trying again in {pause_s:.1f} s")

    def on_refused(self, refusal: Refusal) -> None:
        """Ends the proxy."""
        code = refusal.kind.upper()
        glog("E", f"FAILED_PRECONDITION: the RM refuses this proxy: {code}: {refusal.message}")
        self._ending.decide(EXIT_REFUSED, refusal.message, kind=refusal.kind)

    def on_failed(self, reason: str) -> None:
        """Ends the proxy."""
        self._ending.decide(EXIT_FAILED, reason)

    def is_ending(self) -> bool:
        """Returns whether the proxy ends, e.g. because an update refused it."""
        return self._ending.decided

    # ---- internal

    def _tenant_hello(self) -> pb.TenantHello:
        hello = pb.TenantHello()
        hello.CopyFrom(self._hello)
        hello.versions.min = PROTOCOL_MIN
        hello.versions.max = PROTOCOL_MAX
        hello.identity_token = self._identity()
        hello.running = self._slices.granted.is_set()
        hello.last_generation = self._slices.newest_generation
        if self._idle_count is not None:
            hello.idle_count = self._idle_count
        if hello.tenant.HasField("max_lifetime_s"):
            # The rest of it: for an RM that lost its state this is the first hello.
            left = hello.tenant.max_lifetime_s - (time.monotonic() - self._began)
            hello.tenant.max_lifetime_s = max(0.0, left)
        write_older_fields(hello)
        for epoch in self._slices.current():
            if epoch.generation is not None:
                hello.claims.add(
                    virtual_index=epoch.index, slice_id=epoch.slice_id, generation=epoch.generation
                )
        return hello

    def _on_welcome(self, welcome: pb.TenantWelcome) -> None:
        state = "recovering" if welcome.recovering else "ready"
        glog("I", f"The RM is {state}; protocol {welcome.version}")
        if welcome.memory_limit_bytes:
            self._on_memory_limit(welcome.memory_limit_bytes)
        if self._reporter is not None and welcome.activity_s > 0:
            self._reporter.begin(welcome.activity_s, self._send_activity)
        if self._counters is not None and welcome.counters_s > 0:
            self._counters.begin(welcome.counters_s, self._send_counters)
        if welcome.takes_losses:
            self._losses.begin(lambda lost: self._stream.send(pb.TenantMessage(lost=lost)))
        self._takes_events = welcome.takes_events
        self._send_events()

    def _send_events(self) -> None:
        # Not with a lock: the garbage collector may free charged memory in the middle of it.
        with contextlib.suppress(IndexError):
            while self._takes_events:
                self._stream.send(pb.TenantMessage(event=event_message(self._events.popleft())))

    def _on_idle(self, idle: pb.TenantIdle) -> None:
        if idle.withdrawn:
            glog("I", "Slices will not be taken back after all: the tenant works")
        elif idle.released:
            # It is to be queued when it returns, and not to get the missing slices.
            self._slices.granted.clear()
            self._idle_count = idle.count
            glog("W", f"All slices are released: idle for {idle.idle_s:.0f} s")
        else:
            glog(
                "W",
                f"Idle for {idle.idle_s:.0f} s: all slices will be taken back in "
                f"{idle.release_s:.0f} s unless there is work",
            )
        self._ask(hurried=not idle.withdrawn)

    def _ask(self, *, hurried: bool) -> None:
        if self._reporter is not None:
            self._reporter.ask(hurried=hurried)

    def _send_activity(self, found: pb.TenantActivity) -> None:
        self._stream.send(pb.TenantMessage(activity=found))

    def _send_counters(self, found: GetCountersResponse) -> None:
        self._stream.send(pb.TenantMessage(counters=found))

    def _place(self, placement: pb.Placement) -> None:
        index = placement.virtual_index
        self._losses.answered(placement)
        if index >= len(self._slices.instance_types):
            glog("E", f"The RM named virtual slice {index}, which does not exist")
        elif placement.state == pb.Placement.PLACED:
            self._slices.place(index, placement.generation, placement.slice_id)
        elif placement.state == pb.Placement.UNPLACED:
            self._slices.unplace(index, placement.generation, placement.reason or "the RM took it")

    def _on_refusal(self, refused: pb.TenantRefused) -> None:
        glog("E", f"FAILED_PRECONDITION: {refused.message}")
        self._ending.decide(
            EXIT_REFUSED,
            refused.message,
            kind=pb.TenantRefused.Kind.Name(refused.kind).lower(),
            wanted=dict(refused.wanted),
            free=dict(refused.free),
            holders=list(refused.holders),
            position=refused.position if refused.HasField("position") else None,
            types=list(refused.types),
            spares=dict(refused.spares),
            waiting_is_futile=refused.waiting_is_futile
            if refused.HasField("waiting_is_futile")
            else None,
        )


def _log_notice(notice: pb.TenantPreempting) -> None:
    indices = ", ".join(map(str, notice.virtual_indices))
    what = f"Slices {indices}" if indices else "All slices"
    if notice.withdrawn:
        glog("I", f"{what} will not be taken by {notice.by} after all")
    else:
        glog("W", f"{what} will be taken in {notice.grace_s:.0f} s by {notice.by}")


def log_change(change: SliceChange) -> None:
    """Logs a slice's change of placement, as the real image does."""
    old, new = change.old, change.new
    if new.generation is None or old.generation is not None:
        glog("W", f"Transition slice {old.index} placed -> unplaced: {change.reason}")
    if new.generation is not None:
        placement = f"placement on {new.slice_id}, generation {new.generation}"
        glog("I", f"Transition slice {new.index} unplaced -> placed ({placement})")
