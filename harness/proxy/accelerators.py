"""Stand-ins for JAX's plug-ins of accelerators, and executors that use them.

``python -m harness.proxy.accelerators --platform=cuda …`` is an executor with CPUs as its GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from jaxlib import _jax, xla_client

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.servers.executor.__main__ import main
from shared_pathways_service.servers.executor.executor_engine import Engine
from shared_pathways_service.servers.executor.flags import ExecutorOptions
from shared_pathways_service.servers.executor.opened_clients import XlaEngine
from shared_pathways_service.servers.xla.host_platforms import CudaHost, HostPlatform, TpuHost

__all__ = ["StandInCuda", "StandInTpu"]


class StandInCuda:
    """A `Plugin` of some GPUs, which takes the options of JAX's CUDA plug-in that are in use.

    Attributes:
      made: The options of each client.
    """

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self.made: list[dict[str, Any]] = []

    def count(self) -> int:
        """Returns the number of GPUs."""
        return self._gpus

    def make_client(self, options: Mapping[str, Any], coordination: Any) -> Any:
        """Makes a client of CPU devices."""
        self.made.append(dict(options))
        left = dict(options)
        gpus = left.pop("visible_devices")
        assert gpus == sorted(set(gpus))
        assert gpus[-1] < self._gpus
        assert left.pop("preallocate") is False
        if coordination is None:
            assert not left
            return xla_client.make_cpu_client(asynchronous=False, num_devices=len(gpus))
        node, nodes = left.pop("node_id"), left.pop("num_nodes")
        assert not left
        return _joined(coordination, node, nodes, len(gpus))


class StandInTpu:
    """libtpu on a host with some TPUs: one client per process.

    Of `nodes` hosts this is `node`, which libtpu knows by variables.

    Attributes:
      made: The number of clients.
    """

    def __init__(self, tpus: int, node: int = 0, nodes: int = 1) -> None:
        self._tpus = tpus
        self._node = node
        self._nodes = nodes
        self.made = 0

    def count(self) -> int:
        """Returns the number of TPUs."""
        return self._tpus

    def make_client(self, options: Mapping[str, Any], coordination: Any) -> Any:
        """Makes a client of CPU devices."""
        assert not options
        assert not self.made, "libtpu is in use already"
        self.made += 1
        if coordination is None:
            return xla_client.make_cpu_client(asynchronous=False, num_devices=self._tpus)
        return _joined(coordination, self._node, self._nodes, self._tpus)


def _joined(coordination: Any, node: int, nodes: int, own: int) -> Any:
    return xla_client.make_cpu_client(
        distributed_client=coordination,
        node_id=node,
        num_nodes=nodes,
        collectives=_jax.make_gloo_tcp_collectives(coordination, hostname="127.0.0.1"),
        num_devices=own,
    )


def _engine(options: ExecutorOptions) -> Engine:
    kind = InstanceType.parse(options.instance_type)
    platform: HostPlatform
    if options.platform == TpuHost.name:
        tpus = StandInTpu(options.own_devices, options.host_index, kind.hosts)
        platform = TpuHost(kind, tpus)
    else:
        gpus = StandInCuda(options.first_device + options.own_devices)
        platform = CudaHost(options.own_devices, options.first_device, gpus)
    return XlaEngine(options.own_devices, options.bind_address, platform)


if __name__ == "__main__":
    main(sys.argv[1:], _engine)
