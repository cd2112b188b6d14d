"""Reads the counters that proxies in a cluster have reported to the resource manager."""

from __future__ import annotations

from shared_pathways_service.metrics.measurement_messages import families_of
from shared_pathways_service.operations.service_readers.shown_counters import (
    Counters,
    ProxyCounters,
)
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import proxy_status_pb2 as status_pb
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as rm_grpc

__all__ = ["reported_counters"]


async def reported_counters(
    stub: rm_grpc.ResourceManagerAsyncStub, name: str | None = None
) -> Counters:
    """Returns the last report of each connected proxy; of one connection if it is named.

    Raises:
      grpc.aio.AioRpcError: There is no answer, or the resource manager does not collect counters.
    """
    request = pb.GetProxyCountersRequest(tenant=name or "")
    return {
        one.tenant: ProxyCounters(
            None, families_of(status_pb.GetCountersResponse(families=one.families))
        )
        async for one in stub.GetProxyCounters(
            request, timeout=timeouts.MANAGER_CALL.s, wait_for_ready=True
        )
    }
