"""The executors of this proxy, and clients of their devices."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.proxy.executors.executor_client import ExecutorClient
from shared_pathways_service.servers.proxy.executors.executor_link import (
    ExecutorLink,
    first_error,
    new_number,
)
from shared_pathways_service.servers.xla.coordination import Coordinator

__all__ = ["Executors", "hosts_of"]

#: Called with the devices of an executor that has ended, and the reason.
OnLost = Callable[[Sequence[int], str], None]


class Executors:
    """Executors, each with some devices.

    Args:
      addresses: The address of each executor.
      host_of: The executor of each device, by its index; ascending.
      token: The token of all executors; None: they require none.
    """

    def __init__(self, addresses: Sequence[str], host_of: Sequence[int], token: str | None) -> None:
        self._lock = threading.Lock()
        self._watching = threading.Lock()
        self._lost: list[tuple[ExecutorLink, str]] = []
        self._on_lost: OnLost | None = None
        self._opened: dict[tuple[int, ...], int] = {}
        self._coordinators: list[Coordinator] = []
        self._links = [ExecutorLink(address, token, self._lose) for address in addresses]
        self._link_of = {i: self._links[host] for i, host in enumerate(host_of)}

    def watch(self, on_lost: OnLost) -> None:
        """Calls back for each executor that has ended, and will end; on any thread."""
        with self._watching:
            self._on_lost = on_lost
            lost, self._lost = self._lost, []
        for link, reason in lost:
            on_lost(self._devices_of(link), reason)

    def client(self, device_ids: Sequence[int], slices: tuple[int, ...]) -> ExecutorClient:
        """Returns a client of some devices; a `MakeClient`.

        Executors keep the client of a set of slices once it is opened.
        """
        with self._lock:
            number = self._opened.get(slices)
            if number is None:
                number = self._opened[slices] = self._open(device_ids)
        return ExecutorClient(number, device_ids, self._link_of)

    def close(self) -> None:
        """Ends all streams, and so the executors."""
        for link in self._links:
            link.close()

    def _lose(self, link: ExecutorLink, reason: str) -> None:
        with self._watching:
            on_lost = self._on_lost
            if on_lost is None:
                self._lost.append((link, reason))
                return
        on_lost(self._devices_of(link), reason)

    def _devices_of(self, link: ExecutorLink) -> list[int]:
        return [i for i, other in self._link_of.items() if other is link]

    def _open(self, device_ids: Sequence[int]) -> int:
        links = list(dict.fromkeys(self._link_of[i] for i in device_ids))
        coordinator = ""
        if len(links) > 1:
            # It is kept whatever happens: executors may wait for it.
            self._coordinators.append(Coordinator(_own_host(links[0].address), len(links)))
            coordinator = self._coordinators[-1].address
        number = new_number()
        first_error(
            [
                link.ask(
                    pb.ExecutorCommand(
                        client=number,
                        open=pb.OpenClient(
                            devices=device_ids,
                            own=[i for i in device_ids if self._link_of[i] is link],
                            coordinator=coordinator,
                            node=node,
                            nodes=len(links),
                        ),
                    )
                )
                for node, link in enumerate(links)
            ]
        )
        return number


def hosts_of(instance_types: Sequence[InstanceType]) -> list[int]:
    """Returns the host of each device, counted over all slices."""
    found: list[int] = []
    first = 0
    for instance_type in instance_types:
        per_host = instance_type.chips_per_host
        found += [first + chip // per_host for chip in range(instance_type.chips)]
        first += instance_type.hosts
    return found


def _own_host(address: str) -> str:
    """Returns this machine's address on the way to another."""
    host, _, port = address.rpartition(":")
    info = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(info[0], info[1]) as probe:
        # (No packet is sent.)
        probe.connect(info[4])
        own: str = probe.getsockname()[0]
    return own
