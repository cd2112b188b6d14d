"""Devices of several processes as one client of XLA's.

A coordination service, in the process that controls the others, tells them of each other. Its tasks
are recoverable: the end of one does not end the others. Neither the service nor what carries
collectives (Gloo between CPUs) asks for a token.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jaxlib import _jax

from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["JOIN_S", "Coordinator", "OfSeveral", "Seat"]

#: Seconds for all processes to find each other; then jaxlib ends those that still wait.
JOIN_S = 30
#: Seconds without an answer of the service after which jaxlib ends a process. The streams to
#: executors find out what is lost, and sooner: a service on a busy machine may take long.
_HEARTBEAT_S = 100
_SHUTDOWN_S = 5
_ATTEMPTS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """The place of this process among those of a client over several.

    Attributes:
      coordinator: The address of the coordination service.
      node: The number of this process; devices are in the order of these numbers.
      nodes: The number of processes.
      own: The number of devices here.
      devices: The number of devices of all processes.
      host: An address of this machine that the other processes can reach.
    """

    coordinator: str
    node: int
    nodes: int
    own: int
    devices: int
    host: str


class Coordinator:
    """The coordination service of one set of processes.

    It must live as long as one of them: clients of a service that has ended end their processes.

    Attributes:
      address: Where the processes find it.
    """

    def __init__(self, host: str, processes: int) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                self.address = _free_address(host)
                self._service = _jax.get_distributed_runtime_service(
                    self.address, processes, _HEARTBEAT_S, JOIN_S, _SHUTDOWN_S, True
                )
            except Exception as error:  # the port was taken meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise StatusError(
                        Code.UNAVAILABLE, f"no coordination service on {host}: {error}"
                    ) from error
            else:
                return

    def close(self) -> None:
        """Ends the service, once all its processes have ended; does not wait for that."""
        # (It waits for calls of hosts that have not closed their connections.)
        threading.Thread(
            target=self._service.shutdown, name="coordination-ends", daemon=True
        ).start()


def _free_address(host: str) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class OfSeveral:
    """A `Platform`: the devices of several processes, of which each makes one of these.

    Args:
      name: The platform's name.
      seat: The place of this process.
      make_client: Makes the client, with JAX's client of the coordination service, to which this
        process is connected.
    """

    #: Never dropped: jaxlib may end the process with one of these, also with one that has failed.
    _kept: ClassVar[list[Any]] = []

    def __init__(self, name: str, seat: Seat, make_client: Callable[[Any, Seat], Any]) -> None:
        self.name = name
        self._seat = seat
        self._make_client = make_client

    def devices(self, device_ids: Sequence[int]) -> tuple[Any, list[Any]]:
        """Waits for the other processes, and makes a client.

        When the service has ended, or the others do not come in time, jaxlib ends this process.
        """
        coordination = _jax.get_distributed_runtime_client(
            self._seat.coordinator,
            self._seat.node,
            init_timeout=JOIN_S,
            shutdown_timeout=_SHUTDOWN_S,
            heartbeat_timeout=_HEARTBEAT_S,
            shutdown_on_destruction=False,
        )
        self._kept.append(coordination)
        coordination.connect()
        client = self._make_client(coordination, self._seat)
        self._kept.append(client)
        devices = sorted(client.devices(), key=lambda device: (device.process_index, device.id))
        if len(devices) != len(device_ids):
            raise StatusError(
                Code.INTERNAL, f"{len(devices)} devices found each other, not {len(device_ids)}"
            )
        return client, devices
