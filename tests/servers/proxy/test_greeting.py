"""What a proxy says to a resource manager that it comes back to, of what it knows and has left."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from harness.carriers import hello
from harness.processes import DEADLINE_S, KIND, Service
from shared_pathways_service.events.proxy import MemoryNearLimit
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch, SliceTable
from shared_pathways_service.servers.proxy.exits import EXIT_FAILED, Ending
from shared_pathways_service.servers.proxy.rm_link import ResourceManagerLink
from tests.servers.proxy.managers import idle_executor, serving

_PLACED = pb.Placement(virtual_index=0, state=pb.Placement.PLACED, slice_id="slice-0", generation=7)
_LOST = pb.Placement(virtual_index=0, state=pb.Placement.UNPLACED, slice_id="slice-0", generation=7)


class _Forgetful(pb_grpc.ResourceManagerServicer):
    """Places a slice, takes it back, and breaks off: each time, as if it knew of nothing.

    Attributes:
      places: Else it breaks off before.
    """

    def __init__(self) -> None:
        self.places = True
        self.hellos: queue.SimpleQueue[pb.TenantHello] = queue.SimpleQueue()

    def TenantSession(  # noqa: N802 - gRPC's name
        self, requests: Iterator[pb.TenantMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.TenantUpdate]:
        self.hellos.put(next(requests).hello)
        yield pb.TenantUpdate(welcome=pb.TenantWelcome(version=2, ttl_s=15.0, memory_limit_bytes=1))
        if self.places:
            yield pb.TenantUpdate(placement=_PLACED)
            yield pb.TenantUpdate(placement=_LOST)
        context.abort(grpc.StatusCode.UNAVAILABLE, "killed")


@pytest.fixture
def manager(own_directories: Path) -> Iterator[tuple[_Forgetful, str]]:
    forgetful = _Forgetful()  # type: ignore[abstract]
    with serving(forgetful, f"unix:{own_directories / 'rm'}") as address:
        yield forgetful, address


def test_a_proxy_reports_its_last_message_and_its_remaining_life(
    manager: tuple[_Forgetful, str],
) -> None:
    forgetful, address = manager
    slices = SliceTable(("tpuv6e:2x2",), idle_executor)
    asks = hello(name="ada", incarnation="1", max_lifetime_s=1000.0)
    link = ResourceManagerLink(address, asks, slices, Ending(""), None)
    link.start()
    try:
        first = forgetful.hellos.get(timeout=DEADLINE_S)
        again = forgetful.hellos.get(timeout=DEADLINE_S)
    finally:
        link.close("done")
        slices.close()
    assert (first.last_generation, again.last_generation) == (0, 7)
    assert not again.claims, "it holds nothing, and knows of it all the same"
    assert 0 < again.tenant.max_lifetime_s < first.tenant.max_lifetime_s <= 1000.0


@pytest.mark.parametrize(
    ("reason", "received"),
    [("the proxy ends", "the proxy ends"), ("two\nlines", "two lines"), ("x" * 1000, "x" * 256)],
    ids=["short", "two lines", "long"],
)
def test_a_proxy_that_ends_gives_its_slices_back_for_any_reason(
    service: Service, reason: str, received: str
) -> None:
    service.start_ready_workers("slice-0")
    watch = service.watch("ada")
    asks = hello(name="ada", incarnation="1", virtual_slices=[KIND])
    slices = SliceTable((KIND,), idle_executor)
    link = ResourceManagerLink(service.address, asks, slices, Ending(""), None)
    link.start()
    try:
        assert slices.granted.wait(DEADLINE_S)
    finally:
        link.close(reason)
        slices.close()
    while (message := watch.next()).kind != "tenant.gone":
        pass
    assert message.reason == received
    service.wait_for_states({"slice-0": "ready"})


_RELEASED = pb.TenantUpdate(idle=pb.TenantIdle(released=True, count=5))


@pytest.mark.parametrize(
    ("updates", "idle_count"),
    [
        ([], None),
        ([_RELEASED], 5),
        ([_RELEASED, pb.TenantUpdate(queued=pb.TenantQueued(position=1))], None),
        ([_RELEASED, pb.TenantUpdate(running=pb.TenantRunning(placed=1, wanted=1))], None),
    ],
)
def test_a_proxy_says_that_its_slices_were_taken_back_for_idleness(
    own_directories: Path, updates: list[pb.TenantUpdate], idle_count: int | None
) -> None:
    class Breaking(pb_grpc.ResourceManagerServicer):
        """Says what it is to say, and breaks off."""

        def TenantSession(  # noqa: N802 - gRPC's name
            self, requests: Iterator[pb.TenantMessage], context: grpc.ServicerContext
        ) -> Iterator[pb.TenantUpdate]:
            hellos.put(next(requests).hello)
            yield from updates
            context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

    hellos: queue.SimpleQueue[pb.TenantHello] = queue.SimpleQueue()
    slices = SliceTable(("tpuv6e:2x2",), idle_executor)
    manager = Breaking()  # type: ignore[abstract]
    with serving(manager, f"unix:{own_directories / 'rm'}") as address:
        asks = hello(name="ada", incarnation="1")
        link = ResourceManagerLink(address, asks, slices, Ending(""), None)
        link.start()
        try:
            first = hellos.get(timeout=DEADLINE_S)
            again = hellos.get(timeout=DEADLINE_S)
        finally:
            link.close("done")
            slices.close()
    assert not first.HasField("idle_count")
    assert (again.idle_count if again.HasField("idle_count") else None) == idle_count


def test_events_wait_for_a_manager_that_takes_them(own_directories: Path) -> None:
    class Upgraded(pb_grpc.ResourceManagerServicer):
        """Takes no events on its first stream, as older versions, and takes them on its second."""

        def TenantSession(  # noqa: N802 - gRPC's name
            self, requests: Iterator[pb.TenantMessage], context: grpc.ServicerContext
        ) -> Iterator[pb.TenantUpdate]:
            hellos.put(next(requests).hello)
            takes_events = hellos.qsize() == 2
            yield pb.TenantUpdate(welcome=pb.TenantWelcome(version=2, takes_events=takes_events))
            if not takes_events:
                reported.wait(DEADLINE_S)
                context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
            for message in requests:
                messages.put(message)

    hellos: queue.SimpleQueue[pb.TenantHello] = queue.SimpleQueue()
    messages: queue.SimpleQueue[pb.TenantMessage] = queue.SimpleQueue()
    reported = threading.Event()
    slices = SliceTable(("tpuv6e:2x2",), idle_executor)
    with serving(Upgraded(), f"unix:{own_directories / 'rm'}") as address:  # type: ignore[abstract]
        link = ResourceManagerLink(
            address, hello(name="ada", incarnation="1"), slices, Ending(""), None
        )
        link.start()
        try:
            for device in range(20):
                link.report(MemoryNearLimit(reason="full", device=device))
            reported.set()
            received = [messages.get(timeout=DEADLINE_S) for _ in range(8)]
            link.report(MemoryNearLimit(reason="full", device=20))
            received.append(messages.get(timeout=DEADLINE_S))
        finally:
            reported.set()
            link.close("done")
            slices.close()
    devices = [message.event.data["device"] for message in received]
    assert devices == list(range(12, 21)), "the newest, in order"


class _Pauses(threading.Event):
    """What is waited for is noted, and not waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.of_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.of_s.append(timeout or 0.0)
        return self.is_set()


def test_a_proxy_that_cannot_place_a_slice_ends_with_the_reason(
    manager: tuple[_Forgetful, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(_epoch: Epoch) -> Executor:
        raise RuntimeError("can't start new thread")

    pauses = _Pauses()
    forgetful, address = manager
    slices, ending = SliceTable(("tpuv6e:2x2",), fail), Ending("")
    asks = hello(name="ada", incarnation="1")
    link = ResourceManagerLink(address, asks, slices, ending, None)
    monkeypatch.setattr(link._stream, "_closing", pauses)
    link.start()
    try:
        link._stream.join(DEADLINE_S)
        assert ending.decided
    finally:
        link.close("done")
        slices.close()
    assert ending.code == EXIT_FAILED
    assert forgetful.hellos.qsize() == 10
    assert len(pauses.of_s) == 9
    assert min(pauses.of_s) >= 1.0, "what fails for certain is not tried faster each time"
    told = capfd.readouterr().err
    assert told.count("Traceback") == 1
    assert "failed here 10 times: RuntimeError: can't start new thread" in told


def test_what_fails_here_now_and_then_ends_no_proxy(
    manager: tuple[_Forgetful, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def fail_each_second_time(limit: int) -> None:
        tried.append(limit)
        if len(tried) % 2:
            raise RuntimeError("can't start new thread")

    forgetful, address = manager
    forgetful.places = False
    slices, ending = SliceTable(("tpuv6e:2x2",), idle_executor), Ending("")
    asks = hello(name="ada", incarnation="1")
    link = ResourceManagerLink(
        address, asks, slices, ending, None, on_memory_limit=fail_each_second_time
    )
    monkeypatch.setattr(link._stream, "_closing", _Pauses())
    link.start()
    try:
        for _ in range(25):
            forgetful.hellos.get(timeout=DEADLINE_S)
        assert not ending.decided
    finally:
        link.close("done")
        slices.close()


class _Changing(pb_grpc.ResourceManagerServicer):
    """Says what it is told to."""

    def __init__(self) -> None:
        self.updates: queue.SimpleQueue[pb.TenantUpdate | None] = queue.SimpleQueue()

    def TenantSession(  # noqa: N802 - gRPC's name
        self, requests: Iterator[pb.TenantMessage], _context: grpc.ServicerContext
    ) -> Iterator[pb.TenantUpdate]:
        next(requests)
        yield from iter(self.updates.get, None)


def test_sessions_are_held_up_while_the_tenant_may_not_compute(own_directories: Path) -> None:
    class Granted(threading.Event):
        """Tells of each change."""

        def set(self) -> None:
            super().set()
            changes.put(True)

        def clear(self) -> None:
            super().clear()
            changes.put(False)

    changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    changing = _Changing()  # type: ignore[abstract]
    slices = SliceTable(("tpuv6e:2x2",), idle_executor)
    assert slices.granted.is_set(), "nobody tells"
    slices.granted = Granted()
    with serving(changing, f"unix:{own_directories / 'rm'}") as address:
        asks = hello(name="ada", incarnation="1")
        link = ResourceManagerLink(address, asks, slices, Ending(""), None)
        link.start()
        try:
            assert changes.get(timeout=DEADLINE_S) is False, "it is not known yet"
            for update, granted in (
                (pb.TenantUpdate(running=pb.TenantRunning(placed=1, wanted=1)), True),
                (pb.TenantUpdate(queued=pb.TenantQueued(position=1)), False),
                (pb.TenantUpdate(running=pb.TenantRunning(placed=1, wanted=1)), True),
                (pb.TenantUpdate(idle=pb.TenantIdle(released=True)), False),
            ):
                changing.updates.put(update)
                assert changes.get(timeout=DEADLINE_S) is granted
        finally:
            changing.updates.put(None)
            link.close("done")
            slices.close()
    assert slices.granted.is_set(), "whoever waits goes on, and hears that it ends"
