"""A page that is served in a test, and services to show on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import math
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import grpc.aio
from aiohttp import web

from harness.processes import DEADLINE_S
from shared_pathways_service.api.job_requests import JobStatus
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotFound,
    ServiceNotReady,
)
from shared_pathways_service.events import rfc3339
from shared_pathways_service.operations.service_readers.base import LogRequest, ShowLine
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.shown_counters import Counters
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.web.jobs_feed import JobsFeed
from shared_pathways_service.web.outer_address import OuterAddress
from shared_pathways_service.web.page_actions import PageActions
from shared_pathways_service.web.page_guard import (
    USER_EXPIRES,
    USER_NAME,
    ByPermissions,
    ByToken,
    Refusal,
)
from shared_pathways_service.web.page_server import PageParts, serving
from shared_pathways_service.web.service_feed import ReadableService, ServiceFeed

TOKEN = "a-token-of-the-test"


class NoDetails:
    """A service that shows nothing of its connections but their state."""

    has_counters = False

    def status(self) -> dict[str, Any]:
        raise ServiceNotFound("there is no service")

    def counters(self, _name: str | None) -> Counters:
        return {}

    @contextlib.asynccontextmanager
    async def proxies(self) -> AsyncIterator[Any]:
        yield self

    async def proxy(self, name: str) -> KnownProxy:
        raise ServiceNotFound(f"there is no Job {name}")

    def show_logs(self, wanted: LogRequest, _show: ShowLine) -> None:
        raise ServiceNotFound(f"there is no log of the connection {wanted.name}")


class ReaderAt(NoDetails):
    """Reads a resource manager at an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        async with grpc.aio.insecure_channel(
            self._address, options=(("grpc.max_reconnect_backoff_ms", 200),)
        ) as channel:
            stub: Any = pb_grpc.ResourceManagerStub(channel)
            yield Manager(stub=stub, metadata=(), address=self._address, version="1.2.3")


@dataclasses.dataclass
class Script(NoDetails):
    """What a service that exists in the test alone answers; changed while it is shown."""

    answer: pb.GetStatusResponse = dataclasses.field(default_factory=pb.GetStatusResponse)
    decisions: Sequence[pb.EventMessage] = ()
    usage: pb.GetUsageResponse = dataclasses.field(default_factory=pb.GetUsageResponse)
    failure: str = ""
    log: Sequence[str] = ()

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        stub: Any = SimpleNamespace(
            GetStatus=self._get_status,
            GetHistory=self._get_history,
            GetUsage=self._get_usage,
            Explain=self._explain,
            CordonSlice=self._cordon_slice,
        )
        yield Manager(stub=stub, metadata=(), address="unix:/script", version="1.2.3")

    def show_logs(self, wanted: LogRequest, show: ShowLine) -> None:
        if not self.log:
            super().show_logs(wanted, show)
        for line in self.log:
            show("", line)

    async def _get_status(self, *_: object, **__: object) -> pb.GetStatusResponse:
        if self.failure:
            raise ServiceNotReady(self.failure)
        # (One of its own, as over gRPC: the test goes on to change its.)
        answer = pb.GetStatusResponse()
        answer.CopyFrom(self.answer)
        return answer

    async def _get_history(
        self, request: pb.GetHistoryRequest, **_: object
    ) -> AsyncIterator[pb.HistoryPage]:
        found = [
            one
            for one in self.decisions
            if one.sequence > request.after
            and (not request.tenant or one.tenant == request.tenant)
            and (not request.kinds or one.kind in request.kinds)
        ]
        yield pb.HistoryPage(events=found, last=max((one.sequence for one in found), default=0))

    async def _get_usage(self, *_: object, **__: object) -> pb.GetUsageResponse:
        return self.usage

    async def _explain(self, request: pb.ExplainRequest, **_: object) -> pb.ExplainResponse:
        return pb.ExplainResponse(tenant=request.tenant, sentences=[f"{request.tenant} waits."])

    async def _cordon_slice(
        self, request: pb.CordonSliceRequest, **_: object
    ) -> pb.CordonSliceResponse:
        found = next((one for one in self.answer.slices if one.id == request.slice), None)
        if found is None:
            raise InvalidRequestError("slice", request.slice, "a slice of the service")
        found.state = "cordoned"
        return pb.CordonSliceResponse(state=found.state, tenant=found.tenant)


def answer_of(url: str, path: str, **parameters: str) -> Any:
    """Returns what the page at the address that `sps ui` printed answers to one request."""
    address = urlsplit(url)
    query = urlencode({**dict(parse_qsl(address.query)), **parameters})
    asked = address._replace(path=path, query=query).geturl()
    with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
        return json.load(answer)


@contextlib.contextmanager
def page_of(
    reader: ReadableService,
    *,
    port: int = 0,
    delete_command: Sequence[str] = (),
    runs: Sequence[str] = (),
    jobs: Jobs | None = None,
    load: Mapping[str, Any] | None = None,
    outer: OuterAddress | None = None,
    user: str = "",
) -> Iterator[int]:
    """Serves the page in a thread for the length of the block, and yields its port.

    With a command that deletes connections the page may act on the service. It shows what the
    service uses of its machine if that is given, and is served at `outer` by a proxy as well. With
    a user it is a page for several people, and each request is this user's.

    Raises:
      SharedPathwaysError: The port cannot be bound.
    """
    submitted = feed_of(jobs or Jobs())

    @contextlib.asynccontextmanager
    async def serve() -> AsyncIterator[int]:
        feed = ServiceFeed(reader, "embedded", interval_s=0.05)
        acts = PageActions(feed, delete_command, jobs=submitted) if delete_command else None
        parts = PageParts(
            feed=feed,
            guard=_Naming(user) if user else ByToken(TOKEN, outer),
            jobs=None if user else submitted,
            is_shared=bool(user),
            load=None if load is None else lambda: load,
            actions=acts,
            runs=runs,
        )
        async with serving(parts, port) as bound:
            yield bound

    with in_thread(serve()) as bound:
        yield bound


class _Naming(ByPermissions):
    """Lets in everybody as one user, as a guard does that has verified an assertion."""

    def __init__(self, user: str) -> None:
        self._user = user

    async def refusal(self, request: web.Request) -> Refusal | None:
        request[USER_NAME], request[USER_EXPIRES] = self._user, math.inf
        return None


@contextlib.contextmanager
def in_thread(served: AbstractAsyncContextManager[int]) -> Iterator[int]:
    """Serves something in the loop of a thread for the length of the block; yields its port."""
    started: concurrent.futures.Future[tuple[int, Callable[[], object]]] = (
        concurrent.futures.Future()
    )

    async def serve() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with served as bound:
            started.set_result((bound, lambda: loop.call_soon_threadsafe(end.set)))
            await end.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    bound, end = started.result(DEADLINE_S)
    try:
        yield bound
    finally:
        end()
        thread.join()


def feed_of(jobs: Jobs) -> JobsFeed:
    """Reads jobs that exist in the test alone."""
    return JobsFeed(lambda: cast(Any, jobs))


class Jobs:
    """Submitted jobs that exist in the test alone; changed while they are shown.

    Attributes:
      found: The jobs, the oldest first.
      written: The output of each.
    """

    name = "embedded"

    def __init__(self, *found: JobStatus) -> None:
        self.found = list(found)
        self.written: list[str] = []

    def jobs(self) -> Sequence[JobStatus]:
        return self.found

    def job(self, name: str) -> JobStatus:
        for one in self.found:
            if one.name == name:
                return one
        raise ServiceNotFound(f"you have no job {name} on this machine")

    def output(self, name: str, lines: int) -> list[str]:
        self.job(name)
        return self.written[-lines:]

    def cancel(self, name: str) -> JobStatus:
        ended = dataclasses.replace(self.job(name), state="cancelled", ended=rfc3339(time.time()))
        self.found = [ended if one.name == name else one for one in self.found]
        return ended
