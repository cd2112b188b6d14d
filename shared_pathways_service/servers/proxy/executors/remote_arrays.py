"""Arrays whose data is on executors."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.interface import ArraySpec
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink, new_number

__all__ = ["Memory", "RemoteArray", "spec_message"]


# Held while stand-ins are made. (Few arrays need any.)
_MAKING = threading.Lock()


class Memory:
    """A stand-in for the memory of a piece.

    Attributes:
      is_donated: Whether a program has taken it.
      origin: The same object for all that may be the same memory.
    """

    __slots__ = ("is_donated", "origin")

    def __init__(self, origin: Memory | None = None) -> None:
        self.is_donated = False
        self.origin: Memory = origin or self


class RemoteArray:
    """An array of one client; its data is freed when nothing refers to this.

    Attributes:
      client: The client's number.
      links: The executor of each piece.
      number: The array's number there.
      shape: The shape of each piece.
    """

    __slots__ = ("_memory", "_parts", "client", "dtype", "links", "number", "shape")

    def __init__(
        self,
        client: int,
        links: Sequence[ExecutorLink],
        dtype: Any,
        shape: tuple[int, ...],
        memory: Sequence[Memory] | None = None,
    ) -> None:
        self.client = client
        self.links = links
        self.number = new_number()
        self.dtype = dtype
        self.shape = shape
        self._memory = memory
        self._parts: list[RemoteArray] | None = None

    @property
    def memory(self) -> Sequence[Memory]:
        """The memory of each piece, the same object for arrays that a donation of one ends."""
        if self._memory is None:
            with _MAKING:
                if self._memory is None:
                    self._memory = [Memory() for _ in self.links]
        return self._memory

    @property
    def is_deleted(self) -> bool:
        """Whether a program has taken the memory of a piece."""
        return self._memory is not None and any(memory.is_donated for memory in self._memory)

    @property
    def piece_bytes(self) -> int:
        """The bytes of each piece."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def donate(self) -> None:
        """Notes that a program has taken the memory, and so that of all arrays that share it."""
        for memory in self.memory:
            memory.is_donated = True

    def __del__(self) -> None:
        """Frees the data."""
        links = self.links
        for link in links if len(links) == 1 else set(links):
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
