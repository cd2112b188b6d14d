"""Connects to the resource manager of a service in a cluster, through its pod; for our images."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import grpc.aio

from shared_pathways_service.cluster_state.readiness import read_readiness, service_selector
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.constants import RESOURCE_MANAGER_PORT
from shared_pathways_service.errors import (
    AccessDenied,
    ServiceNotReady,
    SharedPathwaysError,
)
from shared_pathways_service.events.session import (
    ServiceWaiting,
)
from shared_pathways_service.homes.base import Tell, ignore_event
from shared_pathways_service.homes.kubernetes.dial import dial_pod
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.manifests.names import HEAD_JOB, LABEL_REPLICATED_JOB
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.rmclient.channels import RELAYED_CHANNEL
from shared_pathways_service.rmclient.unary_calls import ManagerCalls
from shared_pathways_service.tunnel.relay import Relay, TunnelFailure

__all__ = ["ManagerLink"]


_log = logging.getLogger(__name__)


class ManagerLink:
    """A channel to the resource manager that finds its pod again after it was replaced.

    Call `open` first, and `close` at the end.

    Args:
      api: The API server.
      service: The service of the resource manager.
      runtime_dir: The directory for the relay's socket.
      head: The resource manager's pod, if known.
    """

    def __init__(
        self, api: KubeApi, service: Service, *, runtime_dir: Path, head: str = ""
    ) -> None:
        self._api = api
        self._service = service
        self._runtime_dir = runtime_dir
        self._head = head
        self._undo = contextlib.AsyncExitStack()
        self._stub: pb_grpc.ResourceManagerAsyncStub | None = None
        self._news: ManagerNews | None = None
        # The last unresolved failure, and the last one that was reported.
        self._failure = self._told = ""
        self._is_let_in = False
        self._refusal: SharedPathwaysError | None = None
        self._limits: set[asyncio.Timeout] = set()
        self._tell: Tell = ignore_event

    @property
    def news(self) -> ManagerNews:
        """The resource manager's events."""
        assert self._news is not None, "call listen first"
        return self._news

    @property
    def stub(self) -> pb_grpc.ResourceManagerAsyncStub:
        """The stub for calls."""
        assert self._stub is not None, "call open first"
        return self._stub

    async def open(self) -> None:
        """Opens the channel; it connects with the first call."""
        async with contextlib.AsyncExitStack() as stack:
            relay = Relay(
                self._dial,
                pod=f"{self._service.name} head",
                runtime_dir=self._runtime_dir,
                on_failure=self._on_failure,
            )
            stack.push_async_callback(relay.close)
            channel = grpc.aio.insecure_channel(await relay.start(), options=RELAYED_CHANNEL)
            stack.push_async_callback(channel.close)
            self._stub = pb_grpc.ResourceManagerStub(channel)
            self._undo = stack.pop_all()

    def listen(self, tenant: str) -> ManagerNews:
        """Starts to receive events of a tenant, which arrive once the resource manager answers."""
        news = self._news = ManagerNews(
            self.stub, self._service.address, only=tenant, on_trouble=self._note
        )
        self._undo.push_async_callback(news.close)
        if self._refusal is not None:
            news.give_up(self._refusal)
        return news

    async def wait_until_listening(self, tell: Tell) -> None:
        """Returns once no event can be missed.

        Args:
          tell: Called with a `ServiceWaiting` if connecting fails, or the resource manager refuses
            for now.

        Raises:
          ServiceNotReady: The resource manager does not answer.
          SharedPathwaysError: The resource manager refuses permanently.
        """
        self._tell = tell
        try:
            async with within(timeouts.MANAGER_ANSWER):
                await self.news.wait_until_listening()
        except TimeoutError as error:
            commands = self._api.access.commands
            where = {"namespace": self._service.namespace, "service": self._service.address}
            raise ServiceNotReady(
                self._no_answer,
                hint=f"`{commands.sps('logs', '--component=rm', **where)}` shows its log; "
                f"`{commands.sps('doctor', **where)}` checks the rest",
            ) from error
        finally:
            self._tell = ignore_event

    async def status(self) -> pb.GetStatusResponse:
        """Returns the resource manager's status.

        Raises:
          grpc.aio.AioRpcError: No answer.
          SharedPathwaysError: It cannot be reached, permanently.
        """
        async with self.unless_refused():
            return await ManagerCalls(stub=self.stub).status(timeouts.MANAGER_STATUS.s)

    @contextlib.asynccontextmanager
    async def unless_refused(self) -> AsyncIterator[None]:
        """Runs a block as long as the resource manager may be reachable.

        Raises:
          SharedPathwaysError: It cannot be reached, permanently; raised at once, whatever the block
            waits for.
        """
        self._check_reachable()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                yield
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._limits.discard(limit)
        if limit.expired():
            self._check_reachable()

    @property
    def _no_answer(self) -> str:
        who = f"the resource manager of {self._service.name}"
        why = self._failure or f"no answer within {timeouts.MANAGER_ANSWER.s:g} s"
        return f"{who} does not answer: {why}"

    async def close(self) -> None:
        """Stops receiving events."""
        await self._undo.aclose()

    def _note(self, failure: str) -> None:
        self._failure = failure
        if failure != self._told:
            self._told = failure
            self._tell(ServiceWaiting(reason=self._no_answer))

    async def _dial(self, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        try:
            self._head = self._head or await self._find_head()
            way = await dial_pod(
                self._api, self._service.namespace, self._head, RESOURCE_MANAGER_PORT, headers
            )
        except (AccessDenied, ApiError) as error:
            if isinstance(error, AccessDenied) and not self._is_let_in:
                raise
            # Not final: the head restarts as another pod, and a client that was admitted once may
            # be refused for a moment, for example by a plug-in that cannot reach its identity
            # provider.
            self._head = ""
            self._note(error.message)
            # The relay repeats the error after its last attempt; report it once.
            raise ServiceNotReady(error.message) from error
        self._is_let_in = True
        # Connected: an earlier failure is not the reason for a missing answer.
        self._failure = ""
        return way

    def _on_failure(self, failure: TunnelFailure) -> None:
        _log.warning("%s: %s", self._service.name, failure.error.message)
        self._note(failure.error.cause or failure.error.message)
        # An evicted pod remains visible, but another pod is the head.
        self._head = ""
        if failure.is_final:
            cause = failure.error.__cause__
            self._give_up(cause if isinstance(cause, SharedPathwaysError) else failure.error)

    def _check_reachable(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _give_up(self, refusal: SharedPathwaysError) -> None:
        """Fails current and later waits, because no connection is possible."""
        self._refusal = refusal
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time())
        if self._news is not None:
            self._news.give_up(refusal)

    async def _find_head(self) -> str:
        selector = f"{service_selector(self._service)},{LABEL_REPLICATED_JOB}={HEAD_JOB}"
        pods = await self._api.get(
            collection("pods", self._service.namespace), params={"labelSelector": selector}
        )
        head = read_readiness(self._service, pods.get("items") or ()).head
        if head is None or not head.ready:
            raise ServiceNotReady(f"the head of {self._service.name} is not ready")
        return head.name
