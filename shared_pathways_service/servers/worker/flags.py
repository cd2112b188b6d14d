"""Flags of the worker: those of the real image, and ours."""

from __future__ import annotations

import dataclasses
import re
import socket

from shared_pathways_service import constants
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import flag, port, positive_int, seconds
from shared_pathways_service.runtime.glog import read_log_format

__all__ = ["WorkerOptions"]

_ADDRESS = re.compile(r"unix:/.+|(?P<host>\[[0-9a-fA-F:]+\]|[^\s:/]+):(?P<port>[0-9]{1,5})")


def _address(text: str) -> str:
    form = _ADDRESS.fullmatch(text)
    if form is None or not 0 < int(form["port"] or 1) <= 65535:
        raise ValueError("HOST:PORT or unix:/PATH")
    return text


def _slice_id(text: str) -> str:
    """Reads a slice's name; of a number, as a JobSet's job index is one, the name is made."""
    return f"slice-{text}" if text.isdecimal() else check_dns_label("--slice_id", text)


def _index(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a whole number from 0 up")
    return int(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker runs."""

    server_port: int | None = flag(
        None, parse=port, help="TCP port; 0: any. By default 29005, or none with --server_socket."
    )
    server_socket: str = flag("", help="Path of a Unix socket to serve on.")
    bind_address: str = flag(
        constants.LOOPBACK, env="SPS_BIND_ADDRESS", help="Address to bind for TCP."
    )
    resource_manager_address: str = flag(
        "", parse=_address, help="The resource manager's: HOST:PORT or unix:/PATH."
    )
    gcs_scratch_location: str = flag("", help="gs://BUCKET/PATH for scratch data.")
    slice_id: str = flag(
        "slice-0",
        parse=_slice_id,
        env=("SPS_SLICE_ID", "MEGASCALE_SLICE_ID"),
        help="The physical slice that this host is of; a number N means slice-N.",
    )
    instance_type: str = flag(
        "",
        env="SPS_INSTANCE_TYPE",
        help="The slice's type, e.g. tpuv6e:2x2; empty: the one type that the service has.",
    )
    host_index: int = flag(
        0,
        parse=_index,
        env=("SPS_HOST_INDEX", "TPU_WORKER_ID", "JOB_COMPLETION_INDEX"),
        help="This host among the hosts of the slice, from 0.",
    )
    host_count: int | None = flag(
        None, parse=positive_int, help="Hosts of the slice; by default as its type has them."
    )
    node_pool: str = flag("", env="SPS_NODE_POOL", help="The node pool of this host.")
    host: str = flag(socket.gethostname(), env="SPS_HOST", help="The name of this host.")
    token_file: str = flag("", env="SPS_TOKEN_FILE", help="File with the service's token.")
    beat_interval_s: float = flag(
        constants.WORKER_BEAT_S,
        parse=seconds,
        help="Longest time between two beats; the resource manager may want a shorter one.",
    )
    stop_exit_code: int = flag(
        0,
        parse=_index,
        env="SPS_STOP_EXIT_CODE",
        help="Exit code after a stop signal; a Job of Kubernetes takes 0 for work that is done.",
    )
    log_format: str = flag(
        "glog",
        parse=read_log_format,
        env="SPS_LOG_FORMAT",
        help="glog or json: one object a line, for collectors of logs.",
    )
    parent_pid: int = flag(0, help="The process whose end ends this one; 0: none.")
    ready_fd: int | None = flag(
        None, parse=_index, help="Descriptor that is told where this process serves."
    )

    def __post_init__(self) -> None:
        """Checks what a parser alone cannot."""
        if not self.resource_manager_address:
            raise InvalidRequestError("--resource_manager_address", "", "an address")
        if self.gcs_scratch_location and not self.gcs_scratch_location.startswith("gs://"):
            raise InvalidRequestError(
                "--gcs_scratch_location", self.gcs_scratch_location, "a location gs://…"
            )
        if self.instance_type:
            InstanceType.parse(self.instance_type, field="--instance_type")

    @property
    def hosts(self) -> int:
        """Hosts of the slice; 0 when this worker cannot know."""
        if self.host_count is not None:
            return self.host_count
        return InstanceType.parse(self.instance_type).hosts if self.instance_type else 0
