"""The calls by which operators cordon, drain and uncordon slices."""

from __future__ import annotations

from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.servers.resource_manager import wire
from shared_pathways_service.servers.resource_manager.authority import Authority
from shared_pathways_service.servers.resource_manager.call_errors import Context, refusing

__all__ = ["CordonCalls"]


class CordonCalls:
    """The cordon, drain and uncordon methods of the service."""

    def __init__(self, authority: Authority) -> None:
        """Serves `authority`."""
        self._authority = authority

    @refusing
    async def CordonSlice(  # noqa: N802
        self, request: pb.CordonSliceRequest, _context: Context
    ) -> pb.CordonSliceResponse:
        """Gives the slice to no further tenant."""
        named = wire.slice_id(request)
        found = self._authority.operators.mark(messages.SliceCordoned(slice_id=named))
        return pb.CordonSliceResponse(state=found.state, tenant=found.tenant)

    @refusing
    async def DrainSlice(  # noqa: N802
        self, request: pb.DrainSliceRequest, _context: Context
    ) -> pb.DrainSliceResponse:
        """Cordons the slice and moves its holder, if another slice is free."""
        named = wire.slice_id(request)
        found = self._authority.operators.mark(messages.SliceDrained(slice_id=named))
        return pb.DrainSliceResponse(
            state=found.state, tenant=found.tenant, onto=found.onto, grace_s=found.moves_in_s
        )

    @refusing
    async def UncordonSlice(  # noqa: N802
        self, request: pb.UncordonSliceRequest, _context: Context
    ) -> pb.UncordonSliceResponse:
        """Makes the slice available to all tenants again."""
        named = wire.slice_id(request)
        found = self._authority.operators.mark(messages.SliceUncordoned(slice_id=named))
        return pb.UncordonSliceResponse(state=found.state, tenant=found.tenant)
