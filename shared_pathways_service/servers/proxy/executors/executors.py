"""The executors of this proxy, and clients of their devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.constants import COLLECTIVE_TIMEOUT_S, CPU
from shared_pathways_service.servers.proxy.executors.executor_client import ExecutorClient
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
from shared_pathways_service.servers.proxy.executors.executor_streams import stream_opener
from shared_pathways_service.servers.proxy.executors.executor_times import ExecutorTimes
from shared_pathways_service.servers.proxy.executors.opened_sets import OpenedSets
from shared_pathways_service.servers.proxy.executors.present_client import PresentClient
from shared_pathways_service.servers.serving.flushing import Flusher

__all__ = ["Executors", "hosts_of"]

#: Seconds for which what was freed waits for a command that it can go with.
_FREED_WAIT_S = 0.005

#: Called with the devices of an executor that has ended, and the reason.
OnLost = Callable[[Sequence[int], str], None]


class Executors:
    """Executors, each with some devices.

    Args:
      addresses: The address of each executor.
      host_of: The executor of each device, by its index; ascending.
      token: The token of all executors; None: they require none.
      collective_timeout_s: The seconds for which a host waits for others in a program.
      transport: The kind of the streams, one of `TRANSPORTS`.
      platform: What the executors compute on.
      times: Gets the times of programs; None: they are not compared.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        host_of: Sequence[int],
        token: str | None,
        collective_timeout_s: int = COLLECTIVE_TIMEOUT_S,
        transport: str = "auto",
        *,
        platform: str = CPU,
        times: ExecutorTimes | None = None,
    ) -> None:
        self._platform = platform
        self._times = times
        self._watching = threading.Lock()
        self._lost: list[tuple[ExecutorLink, str]] = []
        self._on_lost: OnLost | None = None
        self._sets = OpenedSets(collective_timeout_s)
        self._open_stream = stream_opener(transport)
        self._flusher = Flusher(_FREED_WAIT_S)
        self._links = [self.connect(address, token, self._lose) for address in addresses]
        self._link_of = {i: self._links[host] for i, host in enumerate(host_of)}

    def watch(self, on_lost: OnLost) -> None:
        """Calls back for each executor that has ended, and will end; on any thread."""
        with self._watching:
            self._on_lost = on_lost
            lost, self._lost = self._lost, []
        for link, reason in lost:
            on_lost(self._devices_of(link), reason)

    def open(self, device_ids: Sequence[int], slices: tuple[int, ...]) -> None:
        """Opens the client of some devices now, not with its first use.

        Raises:
          StatusError: An executor cannot be used.
        """
        self._sets.number(slices, device_ids, self._link_of)

    @property
    def link_of(self) -> Mapping[int, ExecutorLink]:
        """The executor of each device; `replace` does not change this mapping."""
        return self._link_of

    def client(
        self,
        device_ids: Sequence[int],
        slices: tuple[int, ...],
        placed: Callable[[], Mapping[int, ExecutorLink]] | None = None,
    ) -> ExecutorClient:
        """Returns a client of some devices; a `MakeClient`. It is opened with its first use.

        Args:
          device_ids: The devices, ascending.
          slices: Their slices, ascending.
          placed: Returns the executor of each device, before each use; it may wait, or raise a
            StatusError. None: `link_of`.
        """

        def present() -> PresentClient:
            link_of = self._link_of if placed is None else placed()
            return PresentClient(self._sets.number(slices, device_ids, link_of), link_of)

        made = ExecutorClient(
            device_ids, lambda: self._link_of, present, self._platform, self._times
        )
        self._sets.use(slices, made)
        return made

    def connect(
        self, address: str, token: str | None, on_lost: Callable[[ExecutorLink, str], None]
    ) -> ExecutorLink:
        """Opens the stream to one more executor, which its caller ends, for `replace`."""
        return ExecutorLink(
            address,
            token,
            self._open_stream,
            self._flusher,
            on_lost=on_lost,
            on_broken=self._sets.drop_broken,
        )

    def disconnect(self, links: Sequence[ExecutorLink]) -> None:
        """Ends streams that `connect` has opened, and so the executors."""
        for link in links:
            link.close()
        self._sets.close_services()

    def replace(self, link_of: Mapping[int, ExecutorLink]) -> None:
        """Has other executors take the place of those of some devices, which are lost or missing.

        Programs are compiled on them before their next use; arrays are lost.
        """
        self._link_of = {**self._link_of, **link_of}

    def close(self) -> None:
        """Ends all streams, and so the executors."""
        self.disconnect(self._links)
        self._flusher.close()

    def _lose(self, link: ExecutorLink, reason: str) -> None:
        with self._watching:
            on_lost = self._on_lost
            if on_lost is None:
                self._lost.append((link, reason))
                return
        on_lost(self._devices_of(link), reason)

    def _devices_of(self, link: ExecutorLink) -> list[int]:
        return [i for i, other in self._link_of.items() if other is link]


def hosts_of(instance_types: Sequence[InstanceType], *, with_cpus: bool = False) -> list[int]:
    """Returns the host of each device, counted over all slices.

    Args:
      instance_types: The slices.
      with_cpus: Whether a CPU device beside each chip follows the chips of all slices.
    """
    found: list[int] = []
    first = 0
    for instance_type in instance_types:
        per_host = instance_type.chips_per_host
        found += [first + chip // per_host for chip in range(instance_type.chips)]
        first += instance_type.hosts
    return 2 * found if with_cpus else found
