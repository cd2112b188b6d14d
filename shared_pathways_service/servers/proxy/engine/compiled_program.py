"""A compiled program: its parameters, its results, and the needs of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shared_pathways_service.servers.devices.dtypes import TOKEN
from shared_pathways_service.servers.devices.interface import DeviceClient, Executable, Start
from shared_pathways_service.servers.devices.status_errors import invalid_argument
from shared_pathways_service.servers.proxy.execution.in_flight import Pace
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.memory import Charge, DeviceMemory

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.execution.operations import Operation

__all__ = ["Calls", "Parameter", "Program"]


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter on each device: DTypeProto.Kind, the numpy type, and the shape."""

    kind: int
    dtype: Any
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Calls(Protocol):
    """What a program calls while it runs."""

    name: str

    @property
    def never_wait(self) -> bool:
        """Whether none of the calls is waited for now."""

    def run(self, operation: Operation, work: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Runs the program as a part of an operation, whose end releases its calls."""


@dataclasses.dataclass(slots=True)
class Program:
    """A compiled program.

    Attributes:
      client: The client that it belongs to; another of the same devices cannot run it.
      device_ids: Its devices, in the order of the device assignment.
      result_bytes: The bytes of each result on each device.
      all_bytes: Those of all results on all devices.
      donated: The indices of arguments whose memory the program takes.
      parameters: Its parameters on each device, in order.
      extra_bytes: The memory that a run needs on a device in addition to the results, less
        donations.
      run: Runs it to its end.
      start: Starts it, if its client can do more meanwhile.
      quick: Whether a run is sure to take next to no time, except for callbacks.
      drop: Frees what the program has elsewhere, once no operation uses it.
      deleted: Whether the client has requested its deletion.
      pace: How long a run takes, if it is started.
    """

    name: str
    executable: Executable
    client: DeviceClient
    device_ids: tuple[int, ...]
    slices: tuple[int, ...]
    results: tuple[Spec, ...]
    result_bytes: tuple[int, ...]
    donated: frozenset[int]
    parameters: tuple[Parameter, ...]
    extra_bytes: int
    run: Callable[[list[Any]], list[Any]]
    start: Start | None
    quick: bool = False
    callbacks: Calls | None = None
    drop: Callable[[], None] | None = None
    sent_result_types: bool = False
    deleted: bool = False
    all_bytes: int = dataclasses.field(init=False)
    pace: Pace = dataclasses.field(init=False)
    _accepted: list[Spec | None] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._accepted = [None] * len(self.parameters)
        self.all_bytes = sum(self.result_bytes) * len(self.device_ids)
        self.pace = Pace(0.0) if self.quick else Pace()
        if self.callbacks is not None:
            self.callbacks.name = self.name

    def check(self, index: int, spec: Spec) -> None:
        """Refuses an argument that does not fit: XLA crashes if there are several devices."""
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
            raise invalid_argument(
                f"program {self.name} runs on devices {self.device_ids}, an argument lies on "
                f"{placing.device_ids}"
            )
        wanted = self.parameters[index]
        shard = placing.shard_shape(spec.shape)
        if wanted.kind == TOKEN and (spec.kind == TOKEN or 0 in shard):
            return  # JAX passes an array without elements as a token.
        if (spec.kind, shard) != (wanted.kind, wanted.shape):
            raise invalid_argument(
                f"program {self.name} takes {wanted} on each device as argument {index}, not "
                f"{Parameter(spec.kind, spec.dtype, shard)}"
            )

    def admit(self, memory: DeviceMemory, copied: int) -> tuple[Charge | None, list[Charge | None]]:
        """Charges the memory that one run needs, with so many `copied` bytes on each device.

        Returns the charges to hold while the program runs, and those to hold with each result.
        """
        needed = max(sum(self.result_bytes) + self.extra_bytes + copied, 0)
        charge = memory.charge(self.device_ids, needed, f"program {self.name}")
        if charge is None:
            return None, [None] * len(self.results)
        return charge, [charge.split(nbytes) for nbytes in self.result_bytes]
