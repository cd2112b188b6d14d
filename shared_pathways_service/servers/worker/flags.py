"""Declares the flags of the worker: those of Google's image, and ours."""

from __future__ import annotations

import dataclasses
import re
import socket

from shared_pathways_service import constants
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import choice, count, flag, port, positive_int, seconds
from shared_pathways_service.flags.servers import ServerOptions

__all__ = ["WorkerOptions"]

_ADDRESS = re.compile(r"unix:/.+|(?P<host>\[[0-9a-fA-F:]+\]|[^\s:/]+):(?P<port>[0-9]{1,5})")


def _address(text: str) -> str:
    form = _ADDRESS.fullmatch(text)
    if form is None or not 0 < int(form["port"] or 1) <= 65535:
        raise ValueError("HOST:PORT or unix:/PATH")
    return text


def _slice_id(text: str) -> str:
    """Reads a slice's name, or a number (such as a JobSet's job index), which becomes a name."""
    return f"slice-{text}" if text.isdecimal() else check_dns_label("--slice_id", text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerOptions(ServerOptions):
    """Options of a worker."""

    server_port: int | None = flag(
        None,
        parse=port,
        help="Serve on this TCP port; 0: any. [default: 29005, or none with --server_socket]",
    )
    resource_manager_address: str = flag(
        "", parse=_address, help="Connect to the resource manager at HOST:PORT or unix:/PATH."
    )
    slice_id: str = flag(
        "slice-0",
        parse=_slice_id,
        env=("SPS_SLICE_ID", "MEGASCALE_SLICE_ID"),
        help="Name of this host's physical slice; a number N means slice-N.",
    )
    instance_type: str = flag(
        "",
        env="SPS_INSTANCE_TYPE",
        help="Type of the slice, e.g. tpuv6e:2x2; empty: the service's only type.",
    )
    host_index: int = flag(
        0,
        parse=count,
        env=("SPS_HOST_INDEX", "TPU_WORKER_ID", "JOB_COMPLETION_INDEX"),
        help="Index of this host among the hosts of the slice, from 0.",
    )
    host_count: int | None = flag(
        None, parse=positive_int, help="Number of hosts of the slice. [default: that of its type]"
    )
    node_pool: str = flag("", env="SPS_NODE_POOL", help="Node pool of this host.")
    host: str = flag(socket.gethostname(), env="SPS_HOST", help="Name of this host.")
    executor_address: str = flag(
        "",
        env="SPS_EXECUTOR_ADDRESS",
        help="Have executors bind this address of the host, which proxies and other hosts can "
        "reach. [default: that of --bind_address]",
    )
    platform: str = flag(
        "cpu",
        parse=choice(*constants.PLATFORMS),
        env="SPS_PLATFORM",
        help="Have executors compute on cpu, cuda or tpu.",
    )
    first_device: int = flag(
        0,
        parse=count,
        help="With --platform=cuda, use the GPUs from this index on.",
    )
    colocated_python: bool = flag(
        False,
        env="SPS_COLOCATED_PYTHON",
        help="Allow tenants to run functions of jax.experimental.colocated_python on this host, as "
        "this user.",
    )
    token_file: str = flag("", env="SPS_TOKEN_FILE", help="File with the service's token.")
    beat_interval_s: float = flag(
        constants.WORKER_BEAT_S,
        parse=seconds,
        help="Send heartbeats at this interval; the resource manager may set a shorter one.",
    )
    stop_exit_code: int = flag(
        0,
        parse=count,
        env="SPS_STOP_EXIT_CODE",
        help="Exit with this code after a stop signal; a Job of Kubernetes counts 0 as success.",
    )

    def __post_init__(self) -> None:
        """Checks required flags, and values that depend on others."""
        if not self.resource_manager_address:
            raise InvalidRequestError("--resource_manager_address", "", "an address")
        if self.instance_type:
            InstanceType.parse(self.instance_type, field="--instance_type")

    @property
    def hosts(self) -> int:
        """Hosts of the slice; 0 if this worker does not know."""
        if self.host_count is not None:
            return self.host_count
        return InstanceType.parse(self.instance_type).hosts if self.instance_type else 0
