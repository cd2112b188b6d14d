"""Agents and workers of the first release and services of now, and workers of now and a first RM.

Those of the first release are its messages over real gRPC; what is of now is a process.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from harness.embedded import embedded, eventually, nothing_left
from harness.processes import DEADLINE_S, KIND, Service, Stream, run_async
from shared_pathways_service.agent.probing import probe
from shared_pathways_service.protocol.auth import bearer, read_token
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import read_state
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings
from tests.protocol.first_release import call, handlers, message, refuse, versions
from tests.servers.conftest import MakeService

FOREIGN = (9, 9)
#: As a service of now names both sides, and as one that speaks `FOREIGN` alone.
REFUSED = "the client speaks 9 to 9, the service 1 to 2"
REFUSES = "the client speaks 1 to 2, the service 9 to 9"


# ---- an agent of the first release


class OldAgent:
    """What an agent of the first release does, call by call, to the service of this user."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        paths = RuntimePaths(Settings.load().runtime_dir)
        state = read_state(paths)
        assert state is not None
        self._undo = undo
        self._token = read_token(str(paths.token), field="service.token")
        self._supervisor = undo.enter_context(grpc.insecure_channel(state.address))
        manager = f"unix:{paths.resource_manager_socket}"
        self._manager = undo.enter_context(grpc.insecure_channel(manager))

    def stream(self, name: str, request: Any) -> Stream:
        method = call(self._channel(name), name)
        return self._undo.enter_context(Stream(method, request, token=self._token))

    def ask(self, name: str, request: Any) -> Any:
        method = call(self._channel(name), name)
        return method(request, metadata=bearer(self._token), timeout=DEADLINE_S)

    def _channel(self, name: str) -> grpc.Channel:
        return self._supervisor if name.startswith("Supervisor/") else self._manager


def join(low: int, high: int) -> Any:
    return message(
        "JoinRequest", client_version="0.1.0", protocol_min=low, protocol_max=high, who="ada"
    )


def events_until(watch: Stream, tenant: str, last: str) -> list[str]:
    """Returns the kinds of a tenant's events, up to the last one that is waited for."""
    kinds: list[str] = []
    while last not in kinds:
        event = watch.next()
        assert event is not None, f"the watch ended before {last}: {watch.status()}, {kinds}"
        if event.tenant == tenant:
            kinds.append(event.kind)
    return kinds


def states_until(watch: Stream, last: int) -> list[Any]:
    """Returns what is told of a proxy, up to the state that is waited for."""
    told: list[Any] = []
    while not told or told[-1].state != last:
        proxy = watch.next()
        assert proxy is not None, f"the view of the proxy ended: {watch.status()}, {told}"
        told.append(proxy)
    return told


@pytest.mark.race
def test_an_agent_of_the_first_release_has_a_session_on_a_service_of_now() -> None:
    states = message("Proxy").DESCRIPTOR.enum_types_by_name["State"].values_by_name
    serving, deleted = states["SERVING"].number, states["DELETED"].number
    owner = identity_of()
    with embedded(1), contextlib.ExitStack() as undo:
        agent = OldAgent(undo)
        welcome = agent.stream("Supervisor/Join", join(1, 1)).next()
        assert welcome.protocol == 1
        assert list(welcome.instance_types) == [KIND]
        watch = agent.stream("ResourceManager/Watch", message("WatchRequest", versions=versions()))
        request = message(
            "CreateProxyRequest",
            name="ada-1",
            session="s-1",
            virtual_slices=[KIND],
            priority=3,
            user="ada",
            host="laptop",
            owner_pid=owner.pid,
            owner_start=owner.start,
            max_lifetime_s=1000.0,
        )
        proxy = agent.ask("Supervisor/CreateProxy", request)
        assert proxy.token
        view = agent.stream("Supervisor/WatchProxy", message("WatchProxyRequest", name="ada-1"))
        address = states_until(view, serving)[-1].address
        kinds = events_until(watch, "ada-1", "tenant.running")
        assert kinds.index("slice.placed") < kinds.index("tenant.running")
        run_async(probe(address))
        [tenant] = agent.ask("ResourceManager/GetStatus", message("GetStatusRequest")).tenants
        assert (tenant.name, tenant.state, tenant.priority) == ("ada-1", "running", 3)

        wanted = {"name": "ada-1", "uid": proxy.uid, "session": "s-1", "reason": "done"}
        request = message("DeleteProxyRequest", **wanted)
        assert agent.ask("Supervisor/DeleteProxy", request).deleted
        assert states_until(view, deleted)[-1].reason == "done"
        assert "tenant.gone" in events_until(watch, "ada-1", "tenant.gone")
        assert not agent.ask("Supervisor/DeleteProxy", request).deleted
        undo.close()
        eventually(nothing_left, "all to be given back")


def test_an_agent_of_a_foreign_version_is_refused_with_both_named() -> None:
    with embedded(1), contextlib.ExitStack() as undo:
        agent = OldAgent(undo)
        foreign = message("WatchRequest", versions=versions(*FOREIGN))
        for stream in (
            agent.stream("Supervisor/Join", join(*FOREIGN)),
            agent.stream("ResourceManager/Watch", foreign),
        ):
            assert stream.next() is None
            code, details = stream.status()
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert REFUSED in details


# ---- a worker of the first release


def worker_hello(low: int = 1, high: int = 1, **fields: Any) -> Any:
    hello = message(
        "WorkerHello",
        versions=versions(low, high),
        slice_id="slice-0",
        instance_type=KIND,
        host_index=0,
        host_count=1,
        incarnation="w-1",
        address="127.0.0.1:29005",
        host="node-1",
        pid=7,
        **fields,
    )
    return message("WorkerMessage", hello=hello)


def old_worker(service: Service, hello: Any) -> Stream:
    stream = service.stream(call(service.channel, "ResourceManager/WorkerSession"))
    stream.send(hello)
    return stream


def test_a_worker_of_the_first_release_carries_a_tenant_of_now(make_service: MakeService) -> None:
    service = make_service(count="1")
    worker = old_worker(service, worker_hello())
    welcome = worker.expect("welcome")
    assert welcome.version == 1
    assert welcome.beat_interval_s > 0
    service.wait_for_states({"slice-0": "ready"})
    tenant = service.tenant("ada")
    assert tenant.expect("placement").slice_id == "slice-0"
    tenant.expect("running")
    worker.send(message("WorkerMessage", beat=message("WorkerBeat", sequence=1)))

    # It leaves, and its slice with it; when it is back, the tenant has a new placement there.
    worker.send(message("WorkerMessage", bye=message("WorkerBye", reason="told to stop")))
    lost = tenant.expect("placement")
    assert (lost.slice_id, lost.state) == ("slice-0", _state("UNPLACED"))
    again = old_worker(service, worker_hello(welcomed_at=welcome.last_generation))
    assert again.expect("welcome").version == 1
    placed = tenant.expect("placement")
    assert (placed.slice_id, placed.state) == ("slice-0", _state("PLACED"))
    assert placed.generation > lost.generation


def _state(name: str) -> int:
    placement = message("Placement").DESCRIPTOR
    number: int = placement.enum_types_by_name["State"].values_by_name[name].number
    return number


def test_a_worker_of_a_foreign_version_is_refused_with_both_named(service: Service) -> None:
    worker = old_worker(service, worker_hello(*FOREIGN))
    assert worker.next() is None
    code, details = worker.status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert REFUSED in details
    assert not service.status().slices


# ---- a worker of now, and a resource manager of the first release


class OldManager:
    """Lets workers in as the first release did, or refuses them; `said` is what they say."""

    def __init__(self, address: str, speaks: tuple[int, int]) -> None:
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._speaks = speaks
        self._threads = futures.ThreadPoolExecutor(4)
        self._server = grpc.server(self._threads)
        found = handlers("ResourceManager", {"WorkerSession": self._session})
        self._server.add_generic_rpc_handlers((found,))
        self._server.add_insecure_port(address)
        self._server.start()

    def close(self) -> None:
        assert self._server.stop(None).wait(DEADLINE_S)
        self._threads.shutdown()

    def next(self) -> Any:
        return self.said.get(timeout=DEADLINE_S)

    def _session(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        first = next(requests)
        self.said.put(first)
        theirs = first.hello.versions
        refuse(context, (theirs.min, theirs.max), self._speaks)
        welcome = message("WorkerWelcome", version=1, beat_interval_s=0.1, last_generation=5)
        yield message("WorkerInstruction", welcome=welcome)
        for request in requests:
            self.said.put(request)


@pytest.mark.parametrize("speaks", [(1, 1), FOREIGN], ids=["first", "foreign"])
def test_a_worker_of_now_goes_on_or_ends_with_both_versions_named(
    make_service: MakeService, speaks: tuple[int, int]
) -> None:
    service = make_service()
    assert service.rm.stop() == 0
    manager = OldManager(service.address, speaks)
    try:
        worker = service.start_worker("slice-0")
        hello = manager.next().hello
        assert (hello.versions.min, hello.versions.max) == (1, 2)
        assert (hello.slice_id, hello.instance_type, hello.host_count) == ("slice-0", KIND, 1)
        if speaks == (1, 1):
            worker.wait_for_line("MegaScale transport init succeeded")
            assert [manager.next().beat.sequence for _ in range(2)] == [1, 2]
            assert worker.stop() == 0
            while not (last := manager.next()).HasField("bye"):
                assert last.HasField("beat")
        else:
            worker.wait_for_line(REFUSES)
            assert worker.wait() == 1
    finally:
        manager.close()
