"""Arrays whose data is on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.interface import ArraySpec
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink, new_number

__all__ = ["RemoteArray", "spec_message"]


class RemoteArray:
    """An array of one client; its data is freed when nothing refers to this.

    Attributes:
      client: The client's number.
      links: The executor of each piece.
      number: The array's number there.
      shape: The shape of each piece.
      memory: A stand-in for the memory of each piece, the same object for the same memory.
      is_deleted: Whether its memory was donated to a program.
    """

    __slots__ = ("_parts", "client", "dtype", "is_deleted", "links", "memory", "number", "shape")

    def __init__(
        self,
        client: int,
        links: Sequence[ExecutorLink],
        dtype: Any,
        shape: tuple[int, ...],
        memory: Sequence[object] | None = None,
    ) -> None:
        self.client = client
        self.links = links
        self.number = new_number()
        self.dtype = dtype
        self.shape = shape
        self.memory = [object() for _ in links] if memory is None else memory
        self.is_deleted = False
        self._parts: list[RemoteArray] | None = None

    def __del__(self) -> None:
        """Frees the data."""
        for link in set(self.links):
            link.free("arrays", self.number)

    def parts(self) -> list[RemoteArray]:
        """Returns an array of each piece; its data is that of this array."""
        if self._parts is None:
            made = [
                RemoteArray(self.client, (link,), self.dtype, self.shape, (memory,))
                for link, memory in zip(self.links, self.memory, strict=True)
            ]
            for link in dict.fromkeys(self.links):
                numbers = [part.number for part in made if part.links[0] is link]
                split = pb.SplitArray(array=self.number, parts=numbers)
                link.tell(pb.ExecutorCommand(client=self.client, split=split))
            self._parts = made
        return self._parts


def spec_message(spec: ArraySpec) -> pb.ExecutorArraySpec:
    """Returns the message of what is known of an array."""
    return pb.ExecutorArraySpec(
        kind=spec.kind, shape=spec.shape, sharding=spec.placing.proto.SerializeToString()
    )
