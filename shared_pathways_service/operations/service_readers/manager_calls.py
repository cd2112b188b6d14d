"""Calls a resource manager from commands."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import grpc
import grpc.aio

from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as rm_grpc
from shared_pathways_service.rmclient.failures import translate
from shared_pathways_service.rmclient.unary_calls import ManagerCalls
from shared_pathways_service.version import __version__

__all__ = ["Manager"]


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
        limit: Timeout = timeouts.MANAGER_CALL,
    ) -> _Answer:
        """Makes a call, and waits for a resource manager that is restarting.

        Args:
          method: A method of the stub.
          request: The request.
          limit: The time for the answer.

        Raises:
          VersionSkew: The service is too old for this call.
          ServiceNotReady: The service did not answer in time.
          SharedPathwaysError: The service refused the call.
        """
        async with self.translating():
            return await method(
                request, metadata=self.metadata, timeout=limit.s, wait_for_ready=True
            )

    async def status(self) -> pb.GetStatusResponse:
        """Returns holders and waiting tenants; raises the errors of `ask`."""
        calls = ManagerCalls(stub=self.stub, metadata=self.metadata)
        async with self.translating():
            return await calls.status(timeouts.MANAGER_CALL.s)

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
