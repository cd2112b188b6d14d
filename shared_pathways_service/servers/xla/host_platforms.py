"""The devices of an executor's host, by platform: alone, and with those of other hosts.

CUDA was run on one GPU, and TPUs were not run: docs/distributed.md says what was.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxlib import _jax, xla_client

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.xla.coordination import OfSeveral, Seat
from shared_pathways_service.servers.xla.platforms import CPU, Platform
from shared_pathways_service.servers.xla.plugins import CudaPlugin, Plugin, TpuPlugin

__all__ = ["CpuHost", "CudaHost", "HostPlatform", "TpuHost", "host_platform"]

#: Seconds, in addition to those for other processes, for devices of one process to wait for each
#: other; then XLA ends the process.
_TERMINATE_S = 60


class HostPlatform(Protocol):
    """The devices of one host, for one executor."""

    name: str

    def bound_collectives(self, seconds: int) -> None:
        """Bounds the waits in collectives; call it before the first client is made.

        Without this a program hangs if another process of it hangs.

        Args:
          seconds: The time for which a process waits for the others.
        """

    def alone(self) -> Platform:
        """Returns the devices of this host alone."""

    def of_several(self, seat: Seat) -> Platform:
        """Returns the devices of this host and of others."""


class CpuHost:
    """CPU devices, as many as are wanted; collectives by Gloo."""

    name = "cpu"

    def bound_collectives(self, seconds: int) -> None:
        """Has a program fail that waits longer."""
        _add_xla_flags(
            f"--xla_cpu_collective_timeout_seconds={seconds}",
            f"--xla_cpu_collective_call_terminate_timeout_seconds={seconds + _TERMINATE_S}",
        )

    def alone(self) -> Platform:
        """Makes a client for each use."""
        return CPU

    def of_several(self, seat: Seat) -> Platform:
        """Makes a client over all hosts."""
        return OfSeveral(self.name, seat, _cpus_of_several)


class CudaHost:
    """Some GPUs of this host, by JAX's CUDA plug-in; collectives by NCCL.

    Each client takes memory of its GPUs when it needs it, and does not give it back.

    Args:
      count: The number of GPUs.
      first: The index of the first one.
      plugin: What makes clients.

    Raises:
      InvalidRequestError: The plug-in or GPUs are missing.
    """

    name = "cuda"

    def __init__(self, count: int, first: int = 0, plugin: Plugin | None = None) -> None:
        self._plugin = plugin or CudaPlugin()
        self._gpus = list(range(first, first + count))
        if (found := self._plugin.count()) < first + count:
            offset = f" from {first} on" if first else ""
            raise InvalidRequestError(
                "--instance_type",
                f"{count} chips per host{offset}",
                f"at most {max(found - first, 0)} with --platform=cuda: this host has {found} GPUs",
            )
        self._alone = _Shared(self.name, lambda: self._make({}, None))

    def bound_collectives(self, seconds: int) -> None:
        """Has NCCL end the process that waits longer."""
        _add_xla_flags(f"--xla_gpu_nccl_termination_timeout_seconds={seconds}")

    def alone(self) -> Platform:
        """Uses the same client each time."""
        return self._alone

    def of_several(self, seat: Seat) -> Platform:
        """Makes a client over all hosts."""
        return OfSeveral(
            self.name,
            seat,
            lambda coordination, seat: self._make(
                {"node_id": seat.node, "num_nodes": seat.nodes}, coordination
            ),
        )

    def _make(self, options: Mapping[str, Any], coordination: Any) -> Any:
        own = {"visible_devices": self._gpus, "preallocate": False}
        return self._plugin.make_client({**own, **options}, coordination)


class TpuHost:
    """The TPUs of this host, by libtpu, which makes one client per process, over one slice.

    Args:
      instance_type: The type of the slice.
      plugin: What makes the client.

    Raises:
      InvalidRequestError: libtpu or TPUs are missing, or there are more TPUs than chips.
    """

    name = "tpu"

    def __init__(self, instance_type: InstanceType, plugin: Plugin | None = None) -> None:
        self._plugin = plugin or TpuPlugin()
        self._type = instance_type
        if (found := self._plugin.count()) != instance_type.chips_per_host:
            raise InvalidRequestError(
                "--instance_type",
                f"{instance_type.chips_per_host} chips per host",
                f"as many as the TPUs that libtpu uses on this host ({found})",
                hint="TPU_VISIBLE_CHIPS limits the TPUs that libtpu uses",
            )
        self._alone = _Shared(self.name, lambda: self._plugin.make_client({}, None))
        self._slice: _Shared | None = None

    def bound_collectives(self, seconds: int) -> None:
        """Does nothing: libtpu has no such limit that is documented."""

    def alone(self) -> Platform:
        """Uses the same client each time."""
        return self._alone

    def of_several(self, seat: Seat) -> Platform:
        """Uses the same client each time, over the hosts of the slice.

        Raises:
          StatusError: UNIMPLEMENTED: there are devices of other slices.
        """
        if seat.devices != self._type.chips:
            raise StatusError(
                Code.UNIMPLEMENTED,
                f"a set of {seat.devices} TPUs, of more slices than one {self._type}: libtpu makes "
                "one client per process, over one slice. Keep each array and each program on one "
                "slice, and copy arrays from one to another with jax.device_put",
            )
        if self._slice is None:
            joined = OfSeveral(
                self.name, seat, lambda coordination, _seat: self._made(coordination)
            )
            self._slice = _Shared(self.name, lambda: joined.devices(range(seat.devices))[0])
        return self._slice

    def _made(self, coordination: Any) -> Any:
        return self._plugin.make_client({}, coordination)


class _Shared:
    """A `Platform` with one client, made with its first use."""

    def __init__(self, name: str, make_client: Any) -> None:
        self.name = name
        self._client = functools.cache(make_client)

    def devices(self, device_ids: Sequence[int]) -> tuple[Any, list[Any]]:
        """Returns the client and all its devices."""
        client = self._client()
        devices = sorted(client.devices(), key=lambda device: (device.process_index, device.id))
        if len(devices) != len(device_ids):
            raise StatusError(
                Code.INTERNAL,
                f"the client for {self.name} has {len(devices)} devices, not {len(device_ids)}",
            )
        return client, devices


def host_platform(
    name: str, instance_type: InstanceType, count: int, first: int = 0
) -> HostPlatform:
    """Returns the platform of a name.

    Args:
      name: One of `constants.PLATFORMS`.
      instance_type: The type of the slice that this host is part of.
      count: The number of devices here.
      first: The index of the first GPU.

    Raises:
      InvalidRequestError: This host does not have such devices.
    """
    if name == CudaHost.name:
        return CudaHost(count, first)
    return TpuHost(instance_type) if name == TpuHost.name else CpuHost()


def _cpus_of_several(coordination: Any, seat: Seat) -> Any:
    return xla_client.make_cpu_client(
        distributed_client=coordination,
        node_id=seat.node,
        num_nodes=seat.nodes,
        collectives=_jax.make_gloo_tcp_collectives(coordination, hostname=seat.host),
        num_devices=seat.own,
    )


@functools.cache
def _add_xla_flags(*flags: str) -> None:
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()
