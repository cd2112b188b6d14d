"""What all sessions of one proxy share: devices, slices, memory, the compiler, helper threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.engine.compilations import Compilations
from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache
from shared_pathways_service.servers.proxy.engine.programs import Compiler
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.openings import Opening
from shared_pathways_service.servers.proxy.execution.virtual_slices import (
    Epoch,
    SliceChange,
    SliceTable,
)
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
from shared_pathways_service.servers.proxy.executors.executors import Executors
from shared_pathways_service.servers.proxy.executors.placed_executors import PlacedExecutors
from shared_pathways_service.servers.proxy.loss_reports import LossReports
from shared_pathways_service.servers.proxy.memory import DeviceMemory
from shared_pathways_service.servers.serving.last_requests_file import LastRequests
from shared_pathways_service.servers.xla.platforms import CPU, Platform
from shared_pathways_service.servers.xla.shardings import Placings

__all__ = ["DeviceInfo", "Engine"]

#: Copies of at least this size are made by a helper thread.
_LARGE = 1 << 20
_HELPERS = 4
#: How JAX recognizes CPU devices.
CPU_KIND = "cpu"
#: With executors each may wait for a host that hangs, until it counts as lost.
_HELPERS_THAT_WAIT = 64


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, as clients see it, with its coordinates in the slice's topology.

    Attributes:
      id: Its number among the devices of all slices.
      slice_index: The number of its slice.
      coords: Its place in the topology of the slice.
      kind: What JAX calls its kind.
      host: The number of its host in the slice.
    """

    id: int
    slice_index: int
    coords: tuple[int, int, int]
    kind: str
    host: int

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU device beside a chip, for Python."""
        return self.kind == CPU_KIND


class Engine:
    """The computing part of a proxy.

    Args:
      virtual_slices: The tenant's slices; each chip is a device.
      memory_limit: The most bytes on a device; 0: no limit.
      xla_flags: Names and values of flags, for every program.
      platform: The devices of this process.
      executors: The processes that have the devices, if this one does not; `close` ends them.
      placed_executors: Such processes if they come and go with the placements.
      runs_python: Whether sessions may run Python: each chip then has a CPU device beside it.

    Attributes:
      losses: The placements that were lost with such processes.
    """

    def __init__(
        self,
        virtual_slices: Sequence[InstanceType],
        memory_limit: int = 0,
        xla_flags: Sequence[tuple[str, str]] = (),
        compile_cache: CompileCache | None = None,
        last_requests: LastRequests | None = None,
        *,
        platform: Platform = CPU,
        executors: Executors | None = None,
        placed_executors: PlacedExecutors | None = None,
        runs_python: bool = False,
    ) -> None:
        self.runs_python = runs_python
        self.platform = platform
        self.devices = _devices(virtual_slices, with_cpus=runs_python)
        self._executors = executors
        self.placed_executors = placed_executors
        if placed_executors is not None:
            placed_executors.watch(self._lose_placement)
        self.losses = LossReports()
        having = executors or placed_executors
        make_client = None if having is None else having.client
        self.placings = Placings([d.slice_index for d in self.devices], platform, make_client)
        self.memory = DeviceMemory(len(self.devices), memory_limit)
        self.last_requests = last_requests or LastRequests()
        self.slices = SliceTable([str(t) for t in virtual_slices], self._begin)
        self.slices.add_listener(self._end)
        self.compiler = Compiler(self.placings, xla_flags, compile_cache)
        self.compiler.computes_here = self.computes_here
        self.compiler.place = self.last_requests.place("")
        self.compilations = self.compiler.turns = Compilations(self.compiler.place)
        self._helpers = futures.ThreadPoolExecutor(
            _HELPERS if self.computes_here else _HELPERS_THAT_WAIT, thread_name_prefix="helper"
        )

    def open_executors(self) -> None:
        """Opens the client of each slice on its executors, if there are any.

        Raises:
          SharedPathwaysError: A slice cannot be used.
        """
        if self._executors is None:
            return
        for index, name in enumerate(self.slices.instance_types):
            device_ids = [device.id for device in self.devices if device.slice_index == index]
            try:
                self._executors.open(device_ids, (index,))
            except StatusError as error:
                raise SharedPathwaysError(
                    f"virtual slice {index} ({name}) has no executors: {error.message}",
                    hint="check --executors, --executor_token_file and the executors' logs",
                ) from error

    def place_locally(self) -> None:
        """Places every slice once, for a proxy without a resource manager.

        Each slice is lost with any of its executors; these are not replaced.
        """
        for index in range(len(self.slices.instance_types)):
            self.slices.place(index, 1, "local")
        if self._executors is not None:
            self._executors.watch(self._lose)

    def _begin(self, epoch: Epoch) -> Executor:
        if self.placed_executors is not None and epoch.generation is not None:
            epoch.opening = Opening()
            self.placed_executors.begin(
                epoch.index, epoch.generation, epoch.opening, epoch.slice_id
            )
        return Executor(
            f"slice-{epoch.index}-{epoch.generation}",
            self.last_requests.place(f"on slice {epoch.index}"),
        )

    def _end(self, change: SliceChange) -> None:
        if self.placed_executors is not None and change.old.generation is not None:
            self.placed_executors.end(change.index, change.old.generation)

    def _lose_placement(self, index: int, generation: int, reason: str, host: int | None) -> None:
        if self.slices.current()[index].generation == generation:
            # Before its other executors end by it, which their workers report.
            self.losses.add(index, generation, reason, host)
            self.slices.unplace(index, generation, reason)

    def _lose(self, device_ids: Sequence[int], reason: str) -> None:
        for index in sorted({self.devices[i].slice_index for i in device_ids}):
            generation = self.slices.current()[index].generation
            if generation is not None:
                self.slices.unplace(index, generation, reason)

    def openings(self, slices: tuple[int, ...]) -> list[Opening]:
        """Returns what the present placements of some slices wait for before they can compute."""
        epochs = self.slices.epochs(slices)
        return [epoch.opening for epoch in epochs if epoch.opening is not None]

    def run_soon(self, function: Callable[[], None], nbytes: int) -> None:
        """Runs a function that copies `nbytes`: at once if it is short, else on a helper thread.

        It is short if the copy is small and in this process. The thread that reads a session's
        requests must not wait for executors.
        """
        if nbytes < _LARGE and self.computes_here:
            function()
        else:
            self.run_aside(function)

    @property
    def computes_here(self) -> bool:
        """Whether the devices are in this process, and not in executors."""
        return self._executors is None and self.placed_executors is None

    @property
    def executor_of(self) -> Mapping[int, ExecutorLink]:
        """The executor of each device that has one at present; empty without executors."""
        having = self._executors or self.placed_executors
        links = {} if having is None else having.link_of
        return {i: link for i, link in links.items() if link.lost is None}

    def run_aside(self, function: Callable[[], None]) -> None:
        """Runs a function that ends on its own on a helper thread."""
        self._helpers.submit(function)

    def close(self) -> None:
        """Ends every placement and the helper threads, without waiting for programs."""
        self.slices.close()
        self.compilations.close()
        self._helpers.shutdown(wait=False, cancel_futures=True)
        if self._executors is not None:
            self._executors.close()
        if self.placed_executors is not None:
            self.placed_executors.close()


def _devices(virtual_slices: Sequence[InstanceType], *, with_cpus: bool) -> tuple[DeviceInfo, ...]:
    """Returns the chips of all slices, and then the CPU device beside each, in the same order."""
    devices: list[DeviceInfo] = []
    for index, instance_type in enumerate(virtual_slices):
        for number, coords in enumerate(instance_type.chip_coords()):
            devices.append(
                DeviceInfo(
                    id=len(devices),
                    slice_index=index,
                    coords=coords,
                    kind=instance_type.device_kind,
                    host=number // instance_type.chips_per_host,
                )
            )
    if with_cpus:
        first = len(devices)
        devices += [dataclasses.replace(d, id=first + d.id, kind=CPU_KIND) for d in devices]
    return tuple(devices)
