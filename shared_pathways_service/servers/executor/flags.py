"""Declares the flags of the executor."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.constants import CUDA, LOOPBACK, PLATFORMS, TPU, TRANSPORTS
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import choice, count, flag, port
from shared_pathways_service.flags.servers import ProcessOptions
from shared_pathways_service.servers.serving.connections import ConnectionOptions

__all__ = ["ExecutorOptions"]


_UNSPECIFIED = ("0.0.0.0", "::", "[::]")  # noqa: S104 - is refused


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorOptions(ProcessOptions, ConnectionOptions):
    """Options of an executor."""

    instance_type: str = flag("", help="Type of the slice that this host is part of.")
    host_index: int = flag(
        0, parse=count, help="Index of this host among the hosts of the slice, from 0."
    )
    devices: int | None = flag(
        None, parse=count, help="Number of devices. [default: that of a host of the type]"
    )
    platform: str = flag(
        "cpu",
        parse=choice(*PLATFORMS),
        help="Compute on cpu, cuda or tpu.",
    )
    first_device: int = flag(
        0,
        parse=count,
        help="With --platform=cuda, use the GPUs from this index on.",
    )
    bind_address: str = flag(
        LOOPBACK,
        env="SPS_BIND_ADDRESS",
        help="Bind this address, which the proxy and the other executors must be able to reach.",
    )
    server_port: int | None = flag(0, parse=port, help="Serve on this TCP port; 0: any.")
    token_file: str = flag(
        "", env="SPS_TOKEN_FILE", help="Require the token in this file from the proxy."
    )
    colocated_python: bool = flag(
        False,
        help="Run the proxy's functions of jax.experimental.colocated_python, in processes of this "
        "host, and have a CPU device beside each chip.",
    )
    transport: str = flag(
        "auto",
        parse=choice(*TRANSPORTS),
        env="SPS_TRANSPORT",
        help="Serve gRPC with grpcio's private core, which is fast, with its public API, or auto: "
        "with the core if a check at the start succeeds.",
    )
    parent_pid: int = flag(0, help="End with the process of this pid; 0: none.")
    memory_limit: int = flag(
        0,
        parse=count,
        help="Limit the memory of the process to so many bytes (RLIMIT_DATA); 0: no limit.",
    )

    def __post_init__(self) -> None:
        """Checks flags against each other."""
        instance_type = InstanceType.parse(self.instance_type, field="--instance_type")
        if self.host_index >= instance_type.hosts:
            raise InvalidRequestError(
                "--host_index",
                self.host_index,
                f"less than {instance_type.hosts}, the hosts of a {instance_type}",
            )
        if self.bind_address in _UNSPECIFIED:
            raise InvalidRequestError(
                "--bind_address",
                self.bind_address,
                "one address of this host: other executors are told to connect to it",
            )
        if self.first_device and self.platform != CUDA:
            raise InvalidRequestError(
                "--first_device", self.first_device, f"0 with --platform={self.platform}"
            )
        most = instance_type.chips_per_host
        if self.platform == TPU and self.devices not in (None, most):
            raise InvalidRequestError(
                "--devices", self.devices, f"{most} with --platform=tpu, or left out"
            )
        if self.devices is not None and not 0 < self.devices <= most:
            raise InvalidRequestError(
                "--devices", self.devices, f"1 to {most}, the chips on a host of a {instance_type}"
            )

    @property
    def own_devices(self) -> int:
        """The number of devices, with the CPU devices beside the chips."""
        chips = self.devices or InstanceType.parse(self.instance_type).chips_per_host
        return 2 * chips if self.colocated_python and self.platform == "cpu" else chips
