"""The resource manager as a command asks it, embedded or in a cluster."""

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

#: Seconds for an answer; a resource manager that restarts has them too.
ANSWER_S = 10.0

_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manager:
    """A resource manager that can be asked.

    Attributes:
      stub: For calls.
      metadata: That each call must show.
      address: For people.
      version: The service's: a release, or an image.
      way: Makes a block for as long as it can be reached; once it cannot and will not be, the block
        raises why.
    """

    stub: rm_grpc.ResourceManagerAsyncStub
    metadata: tuple[tuple[str, str], ...]
    address: str
    version: str
    way: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext

    async def ask(
        self,
        method: Callable[..., Awaitable[_Answer]],
        request: object,
        *,
        timeout_s: float = ANSWER_S,
    ) -> _Answer:
        """Asks something; the answer of a resource manager that is just started is waited for.

        Args:
          method: Of the stub.
          request: What it takes.
          timeout_s: For the answer.

        Raises:
          VersionSkew: The service is too old to know what it is asked.
          ServiceNotReady: It does not answer in time.
          SharedPathwaysError: As the service says.
        """
        async with self.translating():
            return await method(
                request, metadata=self.metadata, timeout=timeout_s, wait_for_ready=True
            )

    async def status(self) -> pb.GetStatusResponse:
        """Returns who holds what, and who waits; raises what `ask` does."""
        calls = ManagerCalls(stub=self.stub, metadata=self.metadata)
        async with self.translating():
            return await calls.status(ANSWER_S)

    @contextlib.asynccontextmanager
    async def translating(self) -> AsyncIterator[None]:
        """Makes our errors of gRPC's, and raises at once that there is no way any more."""
        try:
            async with self.way():
                yield
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise VersionSkew(
                    f"the service at {self.address} is {self.version}, which does not know this "
                    f"command of {__version__}",
                    client=__version__,
                    service=self.version,
                    hint="upgrade the service",
                ) from error
            who = "the resource manager of the service"
            raise translate(error, self.address, service=who) from error


@contextlib.asynccontextmanager
async def manager_of(place: Place, settings: Settings) -> AsyncIterator[Manager]:
    """Opens the way to the resource manager, for the length of the block.

    Args:
      place: Where the service is.
      settings: Where the embedded service is looked for.

    Raises:
      ServiceNotFound: There is none, or it is one of Google's, which keeps no history.
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
    # Without a cluster, what they import is of no use.
    from shared_pathways_service.cli.lookups.open_cluster import opened  # noqa: PLC0415
    from shared_pathways_service.operations.manager_link import link_to_manager  # noqa: PLC0415

    async with opened(place) as cluster:
        service = await cluster.service()
        if not service.is_ours:
            raise ServiceNotFound(
                f"{service.name} runs {service.image}, whose resource manager tells nothing",
                hint="`sps status` shows what pods and labels say",
            )
        async with link_to_manager(cluster, service, settings) as link:
            yield Manager(
                stub=link.stub,
                metadata=(),
                address=service.address,
                version=service.image,
                way=link.unless_refused,
            )
