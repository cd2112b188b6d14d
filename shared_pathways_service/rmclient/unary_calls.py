"""Single calls to a resource manager, with a deadline each."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc

__all__ = ["ManagerCalls"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManagerCalls:
    """Calls over one channel. Each raises grpc.aio.AioRpcError when it fails.

    Attributes:
      stub: The resource manager's; the channel is the caller's to close.
      metadata: Sent with each call, for the token.
    """

    stub: pb_grpc.ResourceManagerAsyncStub
    metadata: tuple[tuple[str, str], ...] = ()

    async def status(self, timeout_s: float, *, wait: bool = True) -> pb.GetStatusResponse:
        """Returns slices, tenants and queue; `wait`: for a resource manager that is not there."""
        return await self.stub.GetStatus(
            pb.GetStatusRequest(), metadata=self.metadata, wait_for_ready=wait, timeout=timeout_s
        )

    async def release(self, tenant: str, reason: str, timeout_s: float) -> bool:
        """Releases a tenant's slices at once; returns False if there is no such tenant.

        Args:
          tenant: Its name.
          reason: For the history; one line of printable characters.
          timeout_s: The deadline in seconds; a resource manager that is not there is waited for.
        """
        request = pb.ReleaseTenantRequest(tenant=tenant, reason=reason)
        response = await self.stub.ReleaseTenant(
            request, metadata=self.metadata, wait_for_ready=True, timeout=timeout_s
        )
        return response.released
