"""A home of now on a supervisor and a resource manager of the first release."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from harness.processes import DEADLINE_S, KIND, run_async
from harness.session_requests import session_request
from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.events import Event
from shared_pathways_service.homes.base import ignore_event
from shared_pathways_service.homes.embedded.home import EmbeddedHome
from shared_pathways_service.operations.service_readers.embedded.embedded_checks import (
    embedded_checks,
)
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import ServiceState, write_state
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings, private_directory
from tests.protocol.first_release import handlers, message, refuse

REQUEST = session_request("ada-1", KIND, priority=7)
SESSION = "s-1"


class OldService:
    """A supervisor and a resource manager that speak as the first release did.

    Attributes:
      asked: The calls, in the order in which they came.
      created: What a proxy was asked for with.
    """

    def __init__(self, supervisor: tuple[int, int], manager: tuple[int, int]) -> None:
        self.asked: list[str] = []
        self.created: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._speaks = {"Supervisor": supervisor, "ResourceManager": manager}
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._proxy: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over = threading.Event()
        settings = Settings.load()
        self._paths = RuntimePaths(private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR"))
        self._threads = futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._threads)
        calls = {
            "Supervisor": (self.Join, self.CreateProxy, self.WatchProxy, self.DeleteProxy),
            "ResourceManager": (self.Watch, self.GetStatus),
        }
        for service, behaviours in calls.items():
            found = handlers(service, {one.__name__: one for one in behaviours})
            self._server.add_generic_rpc_handlers((found,))
        address = f"unix:{self._paths.supervisor_socket}"
        self._server.add_insecure_port(address)
        self._server.add_insecure_port(f"unix:{self._paths.resource_manager_socket}")
        self._server.start()
        state = ServiceState(
            supervisor=identity_of(),
            address=address,
            version="0.1.0",
            protocol_min=supervisor[0],
            protocol_max=supervisor[1],
            slices={KIND: 1},
            spares=0,
            since="2026-01-01T00:00:00Z",
            detached=False,
            log_dir=str(settings.state_dir),
        )
        write_state(self._paths, state)

    def close(self) -> None:
        self._over.set()
        for news in (self._events, self._proxy):
            news.put(None)
        assert self._server.stop(None).wait(DEADLINE_S)
        self._threads.shutdown()
        for path in self._paths.leftovers():
            path.unlink()

    # ---- the supervisor

    def Join(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        self.asked.append("Join")
        theirs = (request.protocol_min, request.protocol_max)
        refuse(context, theirs, self._speaks["Supervisor"])
        yield message(
            "JoinReply",
            protocol=1,
            version="0.1.0",
            resource_manager_address=f"unix:{self._paths.resource_manager_socket}",
            instance_types=[KIND],
        )
        self._over.wait()

    def CreateProxy(self, request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.asked.append("CreateProxy")
        self.created.put(request)
        placed = {"virtual_index": 0, "slice_id": "slice-0", "generation": 1}
        self._tell("slice.placed", {**placed, "instance_type": KIND})
        self._tell("tenant.running", {"placed": 1, "wanted": 1})
        self._proxy.put(self._proxy_in("SERVING"))
        return self._proxy_in("STARTING")

    def WatchProxy(  # noqa: N802
        self, _request: Any, _context: grpc.ServicerContext
    ) -> Iterator[Any]:
        self.asked.append("WatchProxy")
        yield from iter(self._proxy.get, None)

    def DeleteProxy(self, request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.asked.append("DeleteProxy")
        self._proxy.put(self._proxy_in("DELETED"))
        return message("DeleteProxyResponse", deleted=request.session == SESSION)

    def _proxy_in(self, state: str) -> Any:
        fields = {"name": REQUEST.name, "session": SESSION, "uid": "uid-1"}
        where = {"address": "unix:/proxy", "token": "t", "log_path": "/none", "state": state}
        return message("Proxy", **fields, **where)

    # ---- the resource manager

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        self.asked.append("Watch")
        theirs = (request.versions.min, request.versions.max)
        refuse(context, theirs, self._speaks["ResourceManager"])
        yield message("EventMessage", kind="slice.ready", source="rm", snapshot=True)
        yield from iter(self._events.get, None)

    def GetStatus(self, _request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.asked.append("GetStatus")
        ready = message("SliceStatus", id="slice-0", instance_type=KIND, state="ready")
        return message("GetStatusResponse", state="serving", types=[KIND], slices=[ready])

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        event = message("EventMessage", kind=kind, source="rm", tenant=REQUEST.name)
        event.data.update(data)
        self._events.put(event)


@asynccontextmanager
async def home_on(service: OldService) -> AsyncIterator[EmbeddedHome]:
    home = EmbeddedHome()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield home
    finally:
        await home.close()
        await asyncio.to_thread(service.close)


@pytest.mark.usefixtures("own_directories")
def test_a_session_goes_its_whole_way() -> None:
    service = OldService((1, 1), (1, 1))

    async def life() -> None:
        async with home_on(service) as home:
            info = await home.preflight(REQUEST, ignore_event)
            assert (info.version, info.instance_types, info.started) == ("0.1.0", (KIND,), False)
            handle = await home.create_proxy(REQUEST, session=SESSION, owner=identity_of())
            assert (handle.uid, handle.token) == ("uid-1", "t")
            kinds = set()
            async for news in home.follow(handle):
                kinds.add(news.kind)
                if kinds >= {"proxy.serving", "slice.placed", "tenant.running"}:
                    break
            assert await home.delete_proxy(REQUEST.name, handle.uid, SESSION)

    run_async(life())
    request = service.created.get_nowait()
    assert (request.name, request.session, request.priority) == ("ada-1", "s-1", 7)
    assert list(request.virtual_slices) == [KIND]
    order = [service.asked.index(one) for one in ("Join", "Watch", "CreateProxy", "DeleteProxy")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("supervisor", "manager"),
    [((9, 9), (1, 1)), ((1, 1), (9, 9))],
    ids=["supervisor", "resource manager"],
)
@pytest.mark.usefixtures("own_directories")
def test_a_foreign_version_is_named_before_anything_is_created(
    supervisor: tuple[int, int], manager: tuple[int, int]
) -> None:
    service = OldService(supervisor, manager)

    async def life() -> None:
        async with home_on(service) as home:
            # (An error that outlived this would keep gRPC's thread.)
            with pytest.raises(VersionSkew, match="speaks 1 to 2, the service 9 to 9") as caught:
                await home.preflight(REQUEST, ignore_event)
            assert (caught.value.client, caught.value.service) == ("1 to 2", "9 to 9")

    run_async(life())
    assert "CreateProxy" not in service.asked


@pytest.mark.usefixtures("own_directories")
def test_the_check_of_a_foreign_version_says_how_to_end_the_service() -> None:
    service = OldService((9, 9), (1, 1))
    try:
        checks = run_async(embedded_checks(Settings.load(), (), DEADLINE_S))
        [check] = [check for check in checks if check.name == "protocol"]
    finally:
        service.close()
    assert check.found == "the service supports versions 9 to 9, and this client 1 to 2"
    assert f"`kill {os.getpid()}`" in check.fix


class FullService(OldService):
    """Has no call left for who asks first."""

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        if "Watch" not in self.asked:
            self.asked.append("Watch")
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit (--max_calls) is 5")
        yield from super().Watch(request, context)


@pytest.mark.usefixtures("own_directories")
def test_a_refused_watch_is_reported_while_waiting() -> None:
    service = FullService((1, 1), (1, 1))
    told: list[Event] = []

    async def life() -> None:
        async with home_on(service) as home:
            await home.preflight(REQUEST, told.append)

    run_async(life())
    said = "the resource manager does not answer: the limit (--max_calls) is 5"
    assert [(news.kind, news.reason) for news in told] == [("service.waiting", said)]
