"""The proxy's word with the resource manager (RM): the tenant's slices, asked for and heard of.

One thread keeps one stream. When the RM goes, work goes on; the stream is tried again, with the
placements that are held as claims.
"""

from __future__ import annotations

import queue
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import grpc

from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.proxy.activity import ActivityReporter
from shared_pathways_service.servers.proxy.exits import EXIT_FAILED, EXIT_REFUSED, Ending
from shared_pathways_service.servers.proxy.work.slices import SliceChange, SliceTable

__all__ = ["ResourceManagerLink"]

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0
#: Streams in a row that end as what the RM says fails here, each this soon (seconds), before the
#: proxy ends: what fails for certain is said at the beginning of each.
_MOST_FAILURES, _SOON_S = 10, 60.0
#: Seconds that the RM has to take the proxy's farewell.
_BYE_S = 1.0
_FINAL = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
_OPTIONS = (
    # Names, tokens and addresses of this machine only: no proxy of the web between us and the RM.
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Retries are this module's own.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # By default a dial to an address where nobody is any more is given up after 20 s: as long as a
    # restarted RM waits for its proxies, and longer than their time to live.
    ("grpc.min_reconnect_backoff_ms", 5000),
)


class ResourceManagerLink:
    """Keeps the tenant known to the RM, and the slice table true.

    Args:
      address: Of the RM: ``host:port`` or ``unix:/path``.
      hello: What is asked for; versions and claims are filled in here.
      slices: Told of placements.
      ending: Told of a refusal.
      token: Shown to the RM; None: none.
      on_memory_limit: Told of the bytes that the RM lets a device hold at most.
      reporter: Tells the RM whether the tenant works, where it asks for that; None: nothing does.
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
    ) -> None:
        self._address = address
        self._hello = hello
        self._slices = slices
        self._ending = ending
        self._metadata = bearer(token)
        self._on_memory_limit = on_memory_limit
        self._reporter = reporter
        self._began = time.monotonic()
        self._idle_count: int | None = None
        self._closing = threading.Event()
        self._slices.granted.clear()
        self._failures = 0
        self._messages: queue.SimpleQueue[pb.TenantMessage | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rm-link", daemon=True)

    def start(self) -> None:
        """Begins to call the RM."""
        self._thread.start()

    def close(self, reason: str) -> None:
        """Gives the slices back and ends the stream."""
        self._closing.set()
        if self._reporter is not None:
            self._reporter.close()
        if not self._thread.is_alive():
            return
        self._messages.put(pb.TenantMessage(bye=pb.TenantBye(reason=reason)))
        self._messages.put(None)
        self._thread.join(_BYE_S)

    def _run(self) -> None:
        delay = _FIRST_DELAY_S
        while not self._closing.is_set():
            # Messages are of one stream: what an older one did not send is not for the next.
            messages = self._messages = queue.SimpleQueue()
            began = time.monotonic()
            try:
                messages.put(pb.TenantMessage(hello=self._greeting()))
                with grpc.insecure_channel(self._address, _OPTIONS) as channel:
                    updates = pb_grpc.ResourceManagerStub(channel).TenantSession(
                        _until_none(messages), metadata=self._metadata
                    )
                    glog("I", f"Signaling to RM {self._address}")
                    for update in updates:
                        delay = _FIRST_DELAY_S
                        self._hear(update)
                reason = "it ended the stream"
                self._failures = 0
            except grpc.RpcError as error:
                reason = f"{error.code().name}: {error.details()}"
                if error.code() in _FINAL and not self._closing.is_set():
                    self._refused_by_status(error.code(), error.details() or "")
                    return
                self._failures = 0
            except Exception as error:  # noqa: BLE001 - without it the slices would be lost unseen
                reason = f"{type(error).__name__}: {error}"
                if not self._bears(reason, began):
                    return
                delay = _LONGEST_DELAY_S
            finally:
                if self._reporter is not None:
                    self._reporter.end()
                messages.put(None)
            if self._closing.is_set() or self._ending.decided:
                return
            pause = delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
            glog("W", f"Lost the RM ({reason}); work goes on, trying again in {pause:.1f} s")
            self._closing.wait(pause)
            delay = min(delay * 2, _LONGEST_DELAY_S)

    def _bears(self, failure: str, began: float) -> bool:
        """Takes note of what failed here, not at the RM; returns whether to try once more."""
        if time.monotonic() - began > _SOON_S:
            self._failures = 0
        self._failures += 1
        if self._failures == 1:
            glog("E", f"What the RM says fails here:\n{traceback.format_exc()}")
        if self._failures < _MOST_FAILURES:
            return True
        reason = f"what the resource manager says failed here {self._failures} times: {failure}"
        self._ending.decide(EXIT_FAILED, reason)
        return False

    def _greeting(self) -> pb.TenantHello:
        hello = pb.TenantHello()
        hello.CopyFrom(self._hello)
        hello.versions.min = PROTOCOL_MIN
        hello.versions.max = PROTOCOL_MAX
        hello.running = self._slices.granted.is_set()
        hello.last_generation = self._slices.newest_generation
        if self._idle_count is not None:
            hello.idle_count = self._idle_count
        if hello.HasField("max_lifetime_s"):
            # What is left of it: to an RM that lost its state this is the first hello.
            left = hello.max_lifetime_s - (time.monotonic() - self._began)
            hello.max_lifetime_s = max(0.0, left)
        for epoch in self._slices.current():
            if epoch.generation is not None:
                hello.claims.add(
                    virtual_index=epoch.index, slice_id=epoch.slice_id, generation=epoch.generation
                )
        return hello

    def _hear(self, update: pb.TenantUpdate) -> None:
        kind = update.WhichOneof("update")
        if kind == "welcome":
            self._welcomed(update.welcome)
        elif kind == "queued":
            queued = update.queued
            # Of one that was preempted, a resource manager that lost its state would think else
            # that it only lacks slices that failed.
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
            self._place(update.placement)
        elif kind == "running":
            running = update.running
            self._slices.granted.set()
            self._idle_count = None
            self._ask(hurried=False)
            glog("I", f"All placements done: {running.placed} of {running.wanted} slices placed")
        elif kind == "preempting":
            _log_notice(update.preempting)
        elif kind == "idle":
            self._hear_idle(update.idle)
        elif kind == "refused":
            self._refused(update.refused)

    def _welcomed(self, welcome: pb.TenantWelcome) -> None:
        state = "recovering" if welcome.recovering else "ready"
        glog("I", f"The RM is {state}; protocol {welcome.version}")
        if welcome.memory_limit_bytes:
            self._on_memory_limit(welcome.memory_limit_bytes)
        if self._reporter is not None and welcome.activity_s > 0:
            self._reporter.begin(welcome.activity_s, self._tell_activity)

    def _hear_idle(self, idle: pb.TenantIdle) -> None:
        if idle.withdrawn:
            glog("I", "Slices will not be taken back after all: the tenant works")
        elif idle.released:
            # It is to be queued when it is back, not to be given what it lacks.
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

    def _tell_activity(self, found: pb.TenantActivity) -> None:
        self._messages.put(pb.TenantMessage(activity=found))

    def _place(self, placement: pb.Placement) -> None:
        index = placement.virtual_index
        if index >= len(self._slices.instance_types):
            glog("E", f"The RM speaks of virtual slice {index}, which does not exist")
        elif placement.state == pb.Placement.PLACED:
            self._slices.place(index, placement.generation, placement.slice_id)
        elif placement.state == pb.Placement.UNPLACED:
            self._slices.unplace(index, placement.generation, placement.reason or "the RM took it")

    def _refused(self, refused: pb.TenantRefused) -> None:
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
        )

    def _refused_by_status(self, code: grpc.StatusCode, details: str) -> None:
        glog("E", f"FAILED_PRECONDITION: the RM refuses this proxy: {code.name}: {details}")
        self._ending.decide(EXIT_REFUSED, details, kind=code.name.lower())


def _log_notice(notice: pb.TenantPreempting) -> None:
    indices = ", ".join(map(str, notice.virtual_indices))
    what = f"Slices {indices}" if indices else "All slices"
    if notice.withdrawn:
        glog("I", f"{what} will not be taken by {notice.by} after all")
    else:
        glog("W", f"{what} will be taken in {notice.grace_s:.0f} s by {notice.by}")


def log_change(change: SliceChange) -> None:
    """Writes a slice's change of placement to the log, as the real image does."""
    old, new = change.old, change.new
    if new.generation is None:
        glog("W", f"Transition slice {old.index} placed -> unplaced: {change.reason}")
        return
    if old.generation is not None:
        glog("W", f"Transition slice {old.index} placed -> unplaced: {change.reason}")
    glog(
        "I",
        f"Transition slice {new.index} unplaced -> placed "
        f"(placement on {new.slice_id}, generation {new.generation})",
    )


def _until_none(
    messages: queue.SimpleQueue[pb.TenantMessage | None],
) -> Iterator[pb.TenantMessage]:
    while (message := messages.get()) is not None:
        yield message
