"""The home in a submitted job's pod: the proxy is another container, and the API server unknown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.constants import PROXY_PORT
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import ProxyExited, ProxyServing, ServiceWaiting
from shared_pathways_service.events.tenants import TenantRunning
from shared_pathways_service.homes.base import (
    HomeCounters,
    ProxyHandle,
    ServiceInfo,
    Tell,
    ignore_event,
)
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.rmclient.channels import STREAM_CHANNEL
from shared_pathways_service.runtime.processes import Identity

__all__ = ["PodHome"]

#: Seconds between two looks at the proxy's port. A container takes longer to start again.
_LOOK_S = 0.5


class PodHome:
    """The proxy in this pod, for the one session of an attempt.

    It lives as long as the pod: it is neither created nor deleted here.

    Args:
      service_address: ``host:port`` of the resource manager.
      pod_ip: This pod's address.
      pod_uid: Its UID.
      token_file: The file with the proxy's token; empty: Google's images, which have neither tokens
        nor a resource manager that reports placements. Then the tenant counts as running as soon as
        its proxy answers, which waits for the slices itself.
      transfer_dir: A directory in memory that the proxy shares; empty: none.
      insecure_credentials: Whether the proxy uses plaintext.
    """

    name = "pod"

    def __init__(
        self,
        *,
        service_address: str,
        pod_ip: str,
        pod_uid: str,
        token_file: str = "",
        transfer_dir: str = "",
        insecure_credentials: bool = True,
    ) -> None:
        self._address = service_address
        self._pod_ip = pod_ip
        self._pod_uid = pod_uid
        self._token = Path(token_file).read_text(encoding="ascii") if token_file else None
        self._transfer_dir = transfer_dir
        self._insecure_credentials = insecure_credentials
        self._news: ManagerNews | None = None
        self._reconnects = 0
        self._trouble = ""
        self._tell: Tell = ignore_event
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._undo = contextlib.AsyncExitStack()

    async def preflight(self, request: SessionRequest, tell: Tell) -> ServiceInfo:
        """Listens to the resource manager; the service was checked when the job was submitted.

        Raises:
          ServiceNotReady: The resource manager does not answer.
        """
        if self._token is not None:
            await self._listen(request.name, tell)
        return ServiceInfo(address=self._address, version="", instance_types=())

    async def create_proxy(
        self,
        request: SessionRequest,
        *,
        session: str,  # noqa: ARG002
        owner: Identity,  # noqa: ARG002
    ) -> ProxyHandle:
        """Returns this pod's proxy."""
        if self._news is not None:
            self._news.follow(request.name, self._events.put_nowait)
        return ProxyHandle(
            name=request.name,
            uid=self._pod_uid,
            token=self._token,
            insecure_credentials=self._insecure_credentials,
            transfer_dir=self._transfer_dir,
        )

    async def follow(self, handle: ProxyHandle) -> AsyncIterator[Event]:  # noqa: ARG002
        """Yields events of the proxy and its slices, until the proxy's port is closed."""
        watching = asyncio.create_task(self._watch_port())
        try:
            while True:
                event = await self._events.get()
                yield event
                if isinstance(event, ProxyExited):
                    break
            # The resource manager's events about the same end may be a moment late.
            with contextlib.suppress(TimeoutError):
                async with within(timeouts.LAST_EVENTS):
                    while not self._is_over or not self._events.empty():
                        yield await self._events.get()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def open_tunnel(
        self,
        handle: ProxyHandle,  # noqa: ARG002
        local_port: int | None,  # noqa: ARG002
    ) -> str:
        """Returns the address of the proxy itself; there is no tunnel."""
        return f"{self._host}:{PROXY_PORT}"

    async def service_failure(self, request: SessionRequest) -> None:
        """Returns nothing: the service is not known here."""

    async def logs(self, handle: ProxyHandle, lines: int) -> list[str]:  # noqa: ARG002
        """Returns nothing: the log of another container cannot be read."""
        return []

    async def delete_proxy(self, name: str, uid: str, session: str) -> bool:  # noqa: ARG002
        """Releases the slices; the proxy ends with its pod."""
        return self._news is not None and await self._news.release(name, "its program has ended")

    def counters(self) -> HomeCounters:
        """Returns the reconnections to the resource manager."""
        if self._news is not None:
            self._reconnects = self._news.reconnects
        return HomeCounters(manager_reconnects=self._reconnects)

    async def close(self) -> None:
        """Stops receiving events."""
        self.counters()
        self._news = None
        await self._undo.aclose()

    # ---- internals

    @property
    def _host(self) -> str:
        return f"[{self._pod_ip}]" if ":" in self._pod_ip else self._pod_ip

    @property
    def _is_over(self) -> bool:
        return self._news is None or self._news.tenant_is_over

    async def _listen(self, tenant: str, tell: Tell) -> None:
        channel = grpc.aio.insecure_channel(self._address, options=STREAM_CHANNEL)
        self._undo.push_async_callback(channel.close)
        stub: pb_grpc.ResourceManagerAsyncStub = pb_grpc.ResourceManagerStub(channel)
        news = self._news = ManagerNews(stub, self._address, only=tenant, on_trouble=self._note)
        self._undo.push_async_callback(news.close)
        self._tell = tell
        try:
            async with within(timeouts.MANAGER_ANSWER):
                await news.wait_until_listening()
        except TimeoutError as error:
            why = self._trouble or f"no answer within {timeouts.MANAGER_ANSWER.s:g} s"
            raise ServiceNotReady(
                f"the resource manager at {self._address} does not answer: {why}"
            ) from error
        finally:
            self._tell = ignore_event

    def _note(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._tell(ServiceWaiting(reason=f"the resource manager does not answer: {trouble}"))

    async def _watch_port(self) -> None:
        """Reports when the proxy listens, and when it does no longer."""
        was_open = False
        while True:
            is_open = await self._is_open()
            if is_open and not was_open:
                self._events.put_nowait(ProxyServing())
                if self._news is None:
                    self._events.put_nowait(TenantRunning())
            elif was_open and not is_open:
                self._events.put_nowait(ProxyExited(reason="its container has ended"))
                return
            was_open = is_open
            await asyncio.sleep(_LOOK_S)

    async def _is_open(self) -> bool:
        """Whether a connection is not refused."""
        try:
            async with within(timeouts.POD_CONNECT):
                _, writer = await asyncio.open_connection(self._pod_ip, PROXY_PORT)
        except TimeoutError:
            return True  # too busy to accept it
        except OSError:
            return False
        writer.close()
        return True
