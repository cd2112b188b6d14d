"""Cordons, drains and uncordons slices."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, assert_never

from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = ["MarkVerb", "MarkedSlice", "mark_slice"]

MarkVerb: TypeAlias = Literal["cordon", "drain", "uncordon"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarkedSlice:
    """A slice after its mark was changed.

    Attributes:
      slice_id: The slice.
      state: Its state now.
      tenant: Its holder; empty: none.
      is_drained: Whether its holder is to move.
      onto: The slice that the holder moves to; empty: none is free.
      grace_s: Seconds until then.
    """

    slice_id: str
    state: str
    tenant: str
    is_drained: bool = False
    onto: str = ""
    grace_s: float = 0.0

    @property
    def sentence(self) -> str:
        """Describes the slice and its holder."""
        return f"{self.slice_id} is {self.state}; {self._holder}"

    @property
    def _holder(self) -> str:
        if not self.tenant:
            return "it has no holder"
        holds = f"{self.tenant} holds it"
        if not self.is_drained:
            return holds
        if not self.onto:
            return f"{holds} until it ends"
        return f"{holds}, and moves to {self.onto} in {self.grace_s:.1f} s"


async def mark_slice(manager: Manager, verb: MarkVerb, slice_id: str) -> MarkedSlice:
    """Changes the mark of a slice.

    Raises:
      InvalidRequestError: There is no such slice.
      SharedPathwaysError: The service does not answer, or refuses the call.
    """
    stub = manager.stub
    if verb == "drain":
        drained = await manager.ask(stub.DrainSlice, pb.DrainSliceRequest(slice=slice_id))
        return MarkedSlice(
            slice_id=slice_id,
            state=drained.state,
            tenant=drained.tenant,
            is_drained=True,
            onto=drained.onto,
            grace_s=drained.grace_s,
        )
    answer: pb.CordonSliceResponse | pb.UncordonSliceResponse
    if verb == "cordon":
        answer = await manager.ask(stub.CordonSlice, pb.CordonSliceRequest(slice=slice_id))
    elif verb == "uncordon":
        answer = await manager.ask(stub.UncordonSlice, pb.UncordonSliceRequest(slice=slice_id))
    else:
        assert_never(verb)
    return MarkedSlice(slice_id=slice_id, state=answer.state, tenant=answer.tenant)
