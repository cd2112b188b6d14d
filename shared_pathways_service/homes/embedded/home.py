"""The home on this machine: proxies are processes of the embedded service, reached directly."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from shared_pathways_service.api.jax_releases import check_pair
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import InvalidRequestError, TunnelError
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import (
    HomeLost,
    ProxyDeleted,
    ProxyExited,
    ProxyServing,
    ServiceWaiting,
    ServiceWarning,
)
from shared_pathways_service.homes.base import (
    HomeCounters,
    ProxyHandle,
    ServiceInfo,
    Tell,
    ignore_event,
)
from shared_pathways_service.homes.embedded.discovery import ServiceLink, find, find_or_start
from shared_pathways_service.homes.embedded.slice_readiness import wait_until_usable
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.protocol.tenant_requests import message_of, write_older_fields
from shared_pathways_service.runtime.embedded.log_directory import tail_of
from shared_pathways_service.runtime.processes import Identity
from shared_pathways_service.runtime.settings import Settings

__all__ = ["EmbeddedHome"]

T = TypeVar("T")

#: Seconds between two polls of a killed process.
_LOOK_S = 0.02


class EmbeddedHome:
    """The embedded service of this user, joined from `preflight` until `close`.

    Args:
      **settings: Settings by name, as for `Settings.load`.
    """

    name = "embedded"

    def __init__(self, **settings: object) -> None:
        self._settings = Settings.load(**settings)  # type: ignore[arg-type]
        self._link: ServiceLink | None = None
        self._news: ManagerNews | None = None
        self._reconnects = 0
        self._trouble = ""
        self._tell: Tell = ignore_event
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def preflight(self, request: SessionRequest, tell: Tell) -> ServiceInfo:
        """Joins or starts the service, and waits until its slices are up.

        Raises:
          InvalidRequestError: The service has no slices of a requested type.
          ServiceNotReady: The service does not answer, cannot be started, has ended meanwhile, or
            has lost its slices.
          VersionSkew: The service has no common protocol version with this client, or its JAX does
            not work with ours.
        """
        wanted = Counter(request.tenant.type_names)
        link = self._link = await find_or_start(
            self._settings, wanted or None, who=f"agent of {request.name}"
        )
        assert link.welcome is not None
        ours, theirs = importlib.metadata.version("jaxlib"), link.welcome.jaxlib_version
        if warning := check_pair(ours, theirs, "the service", ours=True):
            tell(ServiceWarning(reason=warning))
        types = tuple(link.welcome.instance_types)
        for kind in wanted:
            if kind not in types:
                raise InvalidRequestError(
                    "expected_tpu_instances",
                    kind,
                    f"types that the service has: {', '.join(types)}",
                    hint=_more_slices((kind,)) if link.state.detached else "",
                )
        self._news = ManagerNews(
            link.resource_manager,
            link.manager_address,
            link.token,
            only=request.name,
            on_trouble=self._note,
        )
        self._tell = tell
        try:
            # Listen before anything can happen, so that no event is missed.
            await link.while_it_runs(self._news.wait_until_listening())
        finally:
            self._tell = ignore_event
        await self._call(link.while_it_runs(wait_until_usable(link, wanted or types[:1])))
        return ServiceInfo(
            address=link.welcome.resource_manager_address,
            version=link.welcome.version,
            instance_types=types,
            started=bool(link.started_pid),
            more_slices=_more_slices(types) if link.state.detached else "",
        )

    async def create_proxy(
        self, request: SessionRequest, *, session: str, owner: Identity
    ) -> ProxyHandle:
        """Asks the supervisor for a proxy; the same session gets the same proxy again."""
        link, news = self._joined()
        news.follow(request.name, self._events.put_nowait)
        options = request.proxy_options
        message = pb.CreateProxyRequest(
            tenant=message_of(request.tenant),
            session=session,
            xla_flags=options.xla_flags,
            ffi_targets=options.ffi_targets,
            colocated_python=options.sidecar,
            tcp_port=request.local_port,
            owner_pid=owner.pid,
            owner_start=owner.start,
            limits=pb.ProxyLimits(**options.limits),
        )
        write_older_fields(message)
        proxy = await self._call(
            link.supervisor.CreateProxy(
                message, metadata=link.metadata, timeout=timeouts.PROXY_CALL.s
            )
        )
        return ProxyHandle(
            name=proxy.name,
            uid=proxy.uid,
            token=proxy.token or None,
            log=proxy.log_path,
            transfer_dir=proxy.transfer_dir,
        )

    async def follow(self, handle: ProxyHandle) -> AsyncIterator[Event]:
        """Yields events of the proxy and its slices, until it ends."""
        _, news = self._joined()
        watch = asyncio.create_task(self._watch_proxy(handle))
        try:
            while True:
                event = await self._events.get()
                yield event
                if isinstance(event, ProxyExited | ProxyDeleted | HomeLost):
                    break
            # Two streams report the same end; one of them may be a moment late.
            with contextlib.suppress(TimeoutError):
                async with within(timeouts.LAST_EVENTS):
                    while not (news.tenant_is_over and self._events.empty()):
                        yield await self._events.get()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def open_tunnel(self, handle: ProxyHandle, local_port: int | None) -> str:
        """Returns the address of the proxy itself, once it serves; there is no tunnel."""
        link, _ = self._joined()
        call = link.supervisor.WatchProxy(
            pb.WatchProxyRequest(name=handle.name), metadata=link.metadata
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(call.cancel)
            try:
                async for proxy in call:
                    if proxy.state == pb.Proxy.SERVING:
                        if local_port is None:
                            return proxy.address
                        return f"127.0.0.1:{proxy.tcp_port}"
            except grpc.aio.AioRpcError as error:
                raise self._translated(error) from error
        raise TunnelError(f"the proxy {handle.name} has ended", pod=handle.name)

    async def service_failure(self, request: SessionRequest) -> None:
        """Returns nothing: a proxy's end is not a service's here."""

    async def logs(self, handle: ProxyHandle, lines: int) -> list[str]:
        """Returns the last lines of the proxy's log file."""
        return tail_of(Path(handle.log), lines) if handle.log else []

    async def delete_proxy(self, name: str, uid: str, session: str) -> bool:
        """Ends the proxy; if the service has ended, there is none."""
        link = self._link or await find(self._settings)
        if link is None:
            return False
        async with contextlib.AsyncExitStack() as stack:
            if link is not self._link:
                stack.push_async_callback(link.close)
            request = pb.DeleteProxyRequest(
                name=name, uid=uid, session=session, reason="its session deleted it"
            )
            try:
                answer = await link.supervisor.DeleteProxy(
                    request, metadata=link.metadata, timeout=timeouts.PROXY_CALL.s
                )
            except grpc.aio.AioRpcError as error:
                if await _has_ended(link.state.supervisor):
                    # A service that ends also ends its proxies.
                    return False
                raise self._translated(error) from error
            return answer.deleted

    def counters(self) -> HomeCounters:
        """Returns the reconnections to the resource manager; there is no tunnel."""
        if self._news is not None:
            self._reconnects = self._news.reconnects
        return HomeCounters(manager_reconnects=self._reconnects)

    async def close(self) -> None:
        """Leaves the service."""
        if self._news is not None:
            await self._news.close()
            self._reconnects = self._news.reconnects
            self._news = None
        if self._link is not None:
            await self._link.close()
            self._link = None

    # ---- internals

    def _joined(self) -> tuple[ServiceLink, ManagerNews]:
        assert self._link is not None, "call preflight first"
        assert self._news is not None, "call preflight first"
        return self._link, self._news

    def _note(self, trouble: str) -> None:
        """Reports once why the resource manager's events cannot be received."""
        if trouble != self._trouble:
            self._trouble = trouble
            why = f"the resource manager does not answer: {trouble}"
            self._tell(ServiceWaiting(reason=why))

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from error

    def _translated(self, error: grpc.aio.AioRpcError) -> Exception:
        address = self._link.state.address if self._link is not None else ""
        return error_of(error, service="the embedded service", address=address)

    async def _watch_proxy(self, handle: ProxyHandle) -> None:
        """Adds the supervisor's events of the proxy to the stream."""
        link, _ = self._joined()
        request = pb.WatchProxyRequest(name=handle.name)
        reason = "the supervisor ended the view of the proxy"
        try:
            async for proxy in link.supervisor.WatchProxy(request, metadata=link.metadata):
                if (event := _event_of(proxy)) is not None:
                    self._events.put_nowait(event)
                if proxy.state in {pb.Proxy.EXITED, pb.Proxy.DELETED}:
                    return
        except grpc.aio.AioRpcError as error:
            reason = str(self._translated(error))
        self._events.put_nowait(HomeLost(reason=reason))


def _more_slices(types: Sequence[str]) -> str:
    """Returns how the user of a service that was started by itself gets one with more slices."""
    return (
        "this service has the slices of its first request, and ends a minute after its last user; "
        f"then `sps serve --slices {types[0]}=NUMBER` runs one with as many as you need"
    )


def _event_of(proxy: pb.Proxy) -> Event | None:
    match proxy.state:
        case pb.Proxy.SERVING:
            return ProxyServing()
        case pb.Proxy.DELETED:
            return ProxyDeleted(reason=proxy.reason)
        case pb.Proxy.EXITED:
            return ProxyExited(
                reason=proxy.reason,
                exit_code=proxy.exit_code if proxy.HasField("exit_code") else None,
                log_tail=tuple(proxy.log_tail),
                report=_report_of(proxy.exit_report),
            )
    return None


def _report_of(text: str) -> Mapping[str, Any]:
    """Returns a proxy's exit report; empty if it is missing or damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        report = json.loads(text)
        if isinstance(report, dict):
            return report
    return {}


async def _has_ended(supervisor: Identity) -> bool:
    """Whether a process has ended; a dying process closes its sockets a moment earlier."""
    deadline = timeouts.KILLED_PROXY.deadline()
    while supervisor.is_alive():
        if not deadline.left_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True
