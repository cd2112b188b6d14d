"""A compiled program: what it takes, what it returns, and what a run of it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from shared_pathways_service.servers.proxy.callbacks.program_callbacks import ProgramCallbacks
from shared_pathways_service.servers.proxy.dtypes import TOKEN
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.memory import Charge, DeviceMemory
from shared_pathways_service.servers.proxy.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.xla import xla

__all__ = ["Parameter", "Program"]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """What a program takes on each device: DTypeProto.Kind, the same for numpy, and shape."""

    kind: int
    dtype: Any
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(slots=True)
class Program:
    """A compiled program.

    Attributes:
      name: Of its module.
      executable: XLA's.
      client: Whose it is; another of the same devices cannot run it.
      device_ids: Where it runs, in the order of the device assignment.
      slices: The virtual slices concerned.
      results: Type, shape and placing of each result.
      result_bytes: Of each result, on each device.
      donated: Indices of arguments whose memory the program takes.
      parameters: What it takes on each device, in the order of the arguments.
      extra_bytes: Memory a device needs beyond the results while it runs, donations taken off.
      run: Runs it to its end.
      quick: Whether that is sure to take next to no time, but for callbacks.
      callbacks: The functions of its client that it calls; None: it calls none.
      outputs_told: Whether the client has been told of the results' types.
      deleted: Whether the client has asked for its deletion.
    """

    name: str
    executable: Any
    client: xla.XlaClient
    device_ids: tuple[int, ...]
    slices: tuple[int, ...]
    results: tuple[Spec, ...]
    result_bytes: tuple[int, ...]
    donated: frozenset[int]
    parameters: tuple[Parameter, ...]
    extra_bytes: int
    run: Callable[[list[Any]], list[Any]]
    quick: bool = False
    callbacks: ProgramCallbacks | None = None
    outputs_told: bool = False
    deleted: bool = False
    _accepted: list[Spec | None] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._accepted = [None] * len(self.parameters)

    def check(self, index: int, spec: Spec) -> None:
        """Refuses an argument that the program cannot take.

        XLA ends the process when a program over several devices is given the wrong ones.
        """
        last = self._accepted[index]
        if spec is last:
            return
        if last is None or (spec.placing, spec.shape, spec.kind) != (
            last.placing,
            last.shape,
            last.kind,
        ):
            self._check(index, spec)
        self._accepted[index] = spec

    def _check(self, index: int, spec: Spec) -> None:
        placing = spec.placing
        if placing.device_ids != self.device_ids:
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"program {self.name} runs on devices {self.device_ids}, an argument lies on "
                f"{placing.device_ids}",
            )
        wanted = self.parameters[index]
        shard = placing.shard_shape(spec.shape)
        if wanted.kind == TOKEN and (spec.kind == TOKEN or 0 in shard):
            return  # JAX passes an array without elements for a token.
        if (spec.kind, shard) != (wanted.kind, wanted.shape):
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"program {self.name} takes {wanted} on each device as argument {index}, not "
                f"{Parameter(spec.kind, spec.dtype, shard)}",
            )

    def admit(self, memory: DeviceMemory, copied: int) -> tuple[Charge | None, list[Charge | None]]:
        """Takes the memory that one run needs.

        Args:
          memory: What is taken from.
          copied: Bytes on each device of arguments that the program might take, and may not.

        Returns:
          What to hold while the program runs, and what to hold with each result.

        Raises:
          StatusError: RESOURCE_EXHAUSTED, naming the program.
        """
        needed = max(sum(self.result_bytes) + self.extra_bytes + copied, 0)
        charge = memory.charge(self.device_ids, needed, f"program {self.name}")
        if charge is None:
            return None, [None] * len(self.results)
        return charge, [charge.split(nbytes) for nbytes in self.result_bytes]
