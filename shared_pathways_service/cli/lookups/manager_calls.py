"""Calls a resource manager from commands, embedded or in a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import grpc
import grpc.aio

from shared_pathways_service.cli.lookups.embedded_link import embedded_link
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import ServiceNotFound, VersionSkew
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as rm_grpc
from shared_pathways_service.rmclient.failures import translate
from shared_pathways_service.rmclient.unary_calls import ManagerCalls
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.version import __version__

__all__ = ["ANSWER_S", "Manager", "manager_of"]

#: Seconds for an answer, also from a resource manager that is restarting.
ANSWER_S = 10.0

_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manager:
    """A connected resource manager.

    Attributes:
      stub: The stub for calls.
      metadata: The metadata of each call.
      address: The address, for messages.
      version: The service's version: a release, or an image.
      link: Makes a context that raises an error once the connection is lost for good.
    """

    stub: rm_grpc.ResourceManagerAsyncStub
    metadata: tuple[tuple[str, str], ...]
    address: str
    version: str
    link: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext

    async def ask(
        self,
        method: Callable[..., Awaitable[_Answer]],
        request: object,
        *,
        timeout_s: float = ANSWER_S,
    ) -> _Answer:
        """Makes a call, and waits for a resource manager that is restarting.

        Args:
          method: A method of the stub.
          request: The request.
          timeout_s: Seconds for the answer.

        Raises:
          VersionSkew: The service is too old for this call.
          ServiceNotReady: The service did not answer in time.
          SharedPathwaysError: The service refused the call.
        """
        async with self.translating():
            return await method(
                request, metadata=self.metadata, timeout=timeout_s, wait_for_ready=True
            )

    async def status(self) -> pb.GetStatusResponse:
        """Returns holders and waiting tenants; raises the errors of `ask`."""
        calls = ManagerCalls(stub=self.stub, metadata=self.metadata)
        async with self.translating():
            return await calls.status(ANSWER_S)

    @contextlib.asynccontextmanager
    async def translating(self) -> AsyncIterator[None]:
        """Translates gRPC's errors, and raises at once if the connection is lost for good."""
        try:
            async with self.link():
                yield
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise VersionSkew(
                    f"the service at {self.address} is {self.version}, which does not support this "
                    f"command of {__version__}",
                    client=__version__,
                    service=self.version,
                    hint="upgrade the service",
                ) from error
            who = "the resource manager of the service"
            raise translate(error, self.address, service=who) from error


@contextlib.asynccontextmanager
async def manager_of(place: Place, settings: Settings) -> AsyncIterator[Manager]:
    """Connects to a resource manager for the length of the block.

    Args:
      place: The place of the service.
      settings: The directories of the embedded service.

    Raises:
      ServiceNotFound: There is none, or it is one of Google's, which do not support these calls.
      ServiceNotReady: It does not answer.
    """
    if not place.is_cluster:
        async with _embedded(settings) as manager:
            yield manager
        return
    async with _in_cluster(place, settings) as manager:
        yield manager


@contextlib.asynccontextmanager
async def _embedded(settings: Settings) -> AsyncIterator[Manager]:
    async with embedded_link(settings) as link:
        yield Manager(
            stub=link.resource_manager,
            metadata=link.metadata,
            address=link.state.address,
            version=link.state.version,
        )


@contextlib.asynccontextmanager
async def _in_cluster(place: Place, settings: Settings) -> AsyncIterator[Manager]:
    # Slow imports that only a cluster needs.
    from shared_pathways_service.cli.lookups.open_cluster import opened  # noqa: PLC0415
    from shared_pathways_service.operations.manager_link import link_to_manager  # noqa: PLC0415

    async with opened(place) as cluster:
        service = await cluster.service()
        if not service.is_ours:
            raise ServiceNotFound(
                f"{service.name} runs {service.image}, whose resource manager reports nothing",
                hint="`sps status` shows the state of its pods",
            )
        async with link_to_manager(cluster, service, settings) as link:
            yield Manager(
                stub=link.stub,
                metadata=(),
                address=service.address,
                version=service.image,
                link=link.unless_refused,
            )
