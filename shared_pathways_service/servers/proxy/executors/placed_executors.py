"""The executors of placements: they come with a placement, and go with it.

The resource manager (RM) has the hosts of a granted slice start executors, and names them to the
proxy. When the slice is lost, its links are closed, and these executors end; the next placement has
others.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.constants import COLLECTIVE_TIMEOUT_S, CPU
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.bound_work import bound_generation
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
)
from shared_pathways_service.servers.proxy.executors.executor_client import ExecutorClient
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
from shared_pathways_service.servers.proxy.executors.executor_times import ExecutorTimes
from shared_pathways_service.servers.proxy.executors.executors import Executors, hosts_of
from shared_pathways_service.servers.proxy.executors.run_comparison import ExecutorId, SlowLimits

__all__ = ["PlacedExecutors"]


#: Called with the index and the generation of a placement whose executors are gone, the reason, and
#: the host whose executor it is; None: it is not one in particular.
OnLost: TypeAlias = Callable[[int, int, str, int | None], object]


class Opening(Protocol):
    """Has work wait until a placement can compute.

    Attributes:
      done: Whether work may begin.
    """

    done: bool

    def settle(self) -> None:
        """Lets work begin, also if the placement is lost."""

    def wait(self, timeout_s: float) -> bool:
        """Waits until work may begin; returns False if that takes longer."""


class PlacedExecutors:
    """Executors of the placements of virtual slices. Thread-safe.

    Args:
      instance_types: The virtual slices.
      with_cpus: Whether there is a CPU device beside each chip.
      collective_timeout_s: The seconds for which a host waits for others in a program.
      platform: What the executors compute on.
      wait: The time for the RM to name the executors of a placement.
      transport: The kind of the streams to executors, one of `TRANSPORTS`.
      slow: When an executor counts as slow.

    Attributes:
      times: Compares the times of programs on these executors.
    """

    def __init__(
        self,
        instance_types: Sequence[InstanceType],
        *,
        with_cpus: bool = False,
        collective_timeout_s: int = COLLECTIVE_TIMEOUT_S,
        platform: str = CPU,
        wait: Timeout = timeouts.EXECUTORS_NAMED,
        transport: str = "auto",
        slow: SlowLimits | None = None,
    ) -> None:
        self.times = ExecutorTimes(slow or SlowLimits())
        self._executors = Executors(
            (), (), None, collective_timeout_s, transport, platform=platform, times=self.times
        )
        self._on_lost: OnLost = lambda _index, _generation, _reason, _host: None
        self._wait = wait
        self._instance_types = [str(kind) for kind in instance_types]
        #: The devices of each host, by slice.
        self._devices = _devices_of_hosts(instance_types, with_cpus=with_cpus)
        self._lock = threading.Lock()
        self._is_closed = False
        self._newest: dict[int, _Placement] = {}
        #: Slices that have, or had, executors.
        self._connected: set[int] = set()
        self._running: set[_Placement] = set()

    def client(self, device_ids: Sequence[int], slices: tuple[int, ...]) -> ExecutorClient:
        """Returns a client of some devices, whose executors may come later; a `MakeClient`."""
        return self._executors.client(device_ids, slices, functools.partial(self._links, slices))

    @property
    def link_of(self) -> Mapping[int, ExecutorLink]:
        """The executor of each device that has, or had, one; `ExecutorLink.lost` shows which."""
        return self._executors.link_of

    def watch(self, on_lost: OnLost) -> None:
        """Calls back when a placement has lost an executor, or gets none; on any thread.

        Call it before the first placement.
        """
        self._on_lost = on_lost

    def begin(self, index: int, generation: int, opening: Opening, slice_id: str = "") -> None:
        """Opens the executors of a placement once the RM has named them; settles `opening` then.

        Args:
          index: The virtual slice.
          generation: The placement's generation.
          opening: Has work wait for them.
          slice_id: The physical slice, for reports.
        """
        placement = _Placement(index, generation, opening, slice_id)
        with self._lock:
            if self._is_closed:
                opening.settle()
                return
            self._newest[index] = placement
            self._running.add(placement)
            placement.thread = threading.Thread(
                target=self._run,
                args=(placement,),
                name=f"executors-{index}-{generation}",
                daemon=True,
            )
            placement.thread.start()

    def serve(self, message: pb.PlacementExecutors) -> None:
        """Uses the executors that the RM names; again, or for an older placement, does nothing."""
        with self._lock:
            placement = self._newest.get(message.virtual_index)
            if placement is None or placement.generation != message.generation:
                return
            if not placement.hosts:
                placement.hosts = tuple(message.executors)
        placement.told.set()

    def end(self, index: int, generation: int) -> None:
        """Ends the executors of a placement that is lost; does not wait for it."""
        with self._lock:
            ended = [p for p in self._running if (p.index, p.generation) == (index, generation)]
        for placement in ended:
            placement.end()

    def close(self) -> None:
        """Ends all executors, and waits for the ends of their links."""
        # (With this proxy the verdicts end in the status of the RM. No event says so.)
        self.times.on_change = lambda _event: None
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for placement in running:
            placement.end()
        for placement in running:
            if placement.thread is not None:
                placement.thread.join(timeouts.PLACEMENT_THREADS_END.s)
        self.times.close()
        self._executors.close()

    # ---- clients

    def _links(self, slices: tuple[int, ...]) -> Mapping[int, ExecutorLink]:
        """Waits for the executors of some slices, which may be lost then, and returns all.

        Work that is bound to a placement never gets the executors of a later one.
        """
        while True:
            with self._lock:
                newest = {index: self._newest.get(index) for index in slices}
            for index, placement in newest.items():
                _wait(index, placement, self._wait.s + timeouts.EXECUTORS_OPEN.s)
            # (`link_of` gets the executors of a placement while it is the newest one.)
            with self._lock:
                for index in slices:
                    if index not in self._connected:
                        raise StatusError(Code.DATA_LOSS, f"virtual slice {index} has no executors")
                if all(self._newest.get(index) is newest[index] for index in slices):
                    return self._executors.link_of

    # ---- on the thread of a placement

    def _run(self, placement: _Placement) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._forget, placement)
            # In any case: what waits would wait for ever.
            stack.callback(placement.opening.settle)
            reason = self._open(placement, stack)
            if reason and not placement.ended.is_set():
                glog("E", f"Virtual slice {placement.index}: {reason}")
                self._on_lost(placement.index, placement.generation, reason, None)
            placement.opening.settle()
            # It ends with its placement, or with this process.
            placement.ended.wait()

    def _open(self, placement: _Placement, stack: contextlib.ExitStack) -> str:
        """Opens a placement's executors, until the stack is closed; returns why it cannot."""
        if not placement.told.wait(self._wait.s):
            return f"the resource manager named no executors for it within {self._wait.s:g} s"
        if placement.ended.is_set():
            return ""
        devices = self._devices[placement.index]
        found = [host.host_index for host in placement.hosts]
        if found != list(range(len(devices))):
            return f"the resource manager named executors of hosts {found}, not of {len(devices)}"
        try:
            self._connect(placement, devices, stack)
        except Exception as error:  # noqa: BLE001 - whatever it is, the slice is of no use
            return f"its executors cannot be used: {from_exception(error).message}"
        glog(
            "I",
            f"Virtual slice {placement.index}, generation {placement.generation}: executors at "
            + ", ".join(host.address for host in placement.hosts),
        )
        return ""

    def _connect(
        self,
        placement: _Placement,
        devices: Sequence[Sequence[int]],
        stack: contextlib.ExitStack,
    ) -> None:
        links: list[ExecutorLink] = []
        stack.callback(self._executors.disconnect, links)
        stack.callback(self.times.remove, links)
        for host in placement.hosts:
            lost = functools.partial(self._lose, placement, host.host_index)
            links.append(self._executors.connect(host.address, host.token or None, lost))
            self.times.add(
                links[-1], placement.executor(host), self._instance_types[placement.index]
            )
        link_of = {i: link for link, own in zip(links, devices, strict=True) for i in own}
        with self._lock:
            if self._newest[placement.index] is not placement:
                # Its devices may have the executors of the next one already.
                raise StatusError(Code.DATA_LOSS, "the slice is placed anew")
            self._executors.replace(link_of)
            self._connected.add(placement.index)
        self._executors.open(list(link_of), (placement.index,))

    def _lose(self, placement: _Placement, host: int, _link: ExecutorLink, reason: str) -> None:
        if not placement.ended.wait(timeouts.EXECUTOR_LOSS_CAUSE.s):
            self._on_lost(placement.index, placement.generation, reason, host)

    def _forget(self, placement: _Placement) -> None:
        with self._lock:
            self._running.discard(placement)


class _Placement:
    """One placement of a virtual slice, with a thread that opens its executors and ends them.

    Attributes:
      hosts: Its executors by host; empty: the RM has not named them.
      told: Set once the RM has named them, or the placement has ended.
      ended: Set once the placement has ended.
    """

    def __init__(self, index: int, generation: int, opening: Opening, slice_id: str) -> None:
        self.index = index
        self.generation = generation
        self.opening = opening
        self.slice_id = slice_id
        self.hosts: tuple[pb.Executor, ...] = ()
        self.told = threading.Event()
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def executor(self, host: pb.Executor) -> ExecutorId:
        """Returns the name of a host's executor for the comparison of times."""
        return ExecutorId(self.slice_id, self.index, self.generation, host.host_index)

    def end(self) -> None:
        """Ends its executors, on its thread."""
        self.ended.set()
        self.told.set()


def _wait(index: int, placement: _Placement | None, timeout_s: float) -> None:
    if placement is None:
        return
    generation = bound_generation(index)
    if generation is not None and generation != placement.generation:
        raise StatusError(Code.DATA_LOSS, f"virtual slice {index} has been placed again")
    if not (placement.opening.done or placement.opening.wait(timeout_s)):
        raise StatusError(
            Code.DEADLINE_EXCEEDED, f"the executors of virtual slice {index} do not answer"
        )


def _devices_of_hosts(
    instance_types: Sequence[InstanceType], *, with_cpus: bool
) -> list[list[list[int]]]:
    """Returns the devices of each host, for each slice."""
    of_hosts: list[list[int]] = [[] for kind in instance_types for _ in range(kind.hosts)]
    for device, host in enumerate(hosts_of(instance_types, with_cpus=with_cpus)):
        of_hosts[host].append(device)
    hosts = iter(of_hosts)
    return [[next(hosts) for _ in range(kind.hosts)] for kind in instance_types]
