"""CPU devices of several processes as one client of XLA's, with collectives by Gloo.

A coordination service, in the process that controls the others, tells them of each other. Its tasks
are recoverable: the end of one does not end the others. Neither the service nor Gloo asks for a
token.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

from jaxlib import _jax, xla_client

from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["JOIN_S", "Coordinator", "CpuOfSeveral", "bound_collectives"]

#: Seconds for all processes to find each other; then jaxlib ends those that still wait.
JOIN_S = 30
#: Seconds without an answer of the service after which jaxlib ends a process. The streams to
#: executors find out what is lost, and sooner: a service on a busy machine may take long.
_HEARTBEAT_S = 100
_SHUTDOWN_S = 5
#: Seconds, in addition to those for other processes, for devices of one process to wait for each
#: other; then XLA ends the process.
_TERMINATE_S = 60
_ATTEMPTS = 10


@functools.cache
def bound_collectives(seconds: int) -> None:
    """Bounds the waits in collectives; call it before XLA reads its flags.

    Without this a program hangs if another process of it hangs.

    Args:
      seconds: The time for which a process waits for the others; then its program fails.
    """
    flags = (
        f"--xla_cpu_collective_timeout_seconds={seconds}",
        f"--xla_cpu_collective_call_terminate_timeout_seconds={seconds + _TERMINATE_S}",
    )
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()


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


class CpuOfSeveral:
    """A `Platform`: the devices of several processes, of which each makes one of these.

    Args:
      coordinator: The address of the coordination service.
      node: The number of this process; devices are in the order of these numbers.
      nodes: The number of processes.
      own: The number of devices here.
      host: An address of this machine that the other processes can reach.
    """

    name = "cpu"
    #: Never dropped: jaxlib may end the process with one of these, also with one that has failed.
    _kept: ClassVar[list[Any]] = []

    def __init__(self, coordinator: str, node: int, nodes: int, own: int, host: str) -> None:
        self._coordinator = coordinator
        self._node = node
        self._nodes = nodes
        self._own = own
        self._host = host

    def devices(self, device_ids: Sequence[int]) -> tuple[Any, list[Any]]:
        """Waits for the other processes, and makes a client.

        When the service has ended, or the others do not come in time, jaxlib ends this process.
        """
        coordination = _jax.get_distributed_runtime_client(
            self._coordinator,
            self._node,
            init_timeout=JOIN_S,
            shutdown_timeout=_SHUTDOWN_S,
            heartbeat_timeout=_HEARTBEAT_S,
            shutdown_on_destruction=False,
        )
        self._kept.append(coordination)
        coordination.connect()
        client = xla_client.make_cpu_client(
            distributed_client=coordination,
            node_id=self._node,
            num_nodes=self._nodes,
            collectives=_jax.make_gloo_tcp_collectives(coordination, hostname=self._host),
            num_devices=self._own,
        )
        self._kept.append(client)
        devices = sorted(client.devices(), key=lambda device: device.id)
        if len(devices) != len(device_ids):
            raise StatusError(
                Code.INTERNAL, f"{len(devices)} devices found each other, not {len(device_ids)}"
            )
        return client, devices
