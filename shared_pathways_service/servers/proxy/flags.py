"""Flags of the proxy: those of the real image, and ours."""

from __future__ import annotations

import dataclasses

from shared_pathways_service import constants
from shared_pathways_service.constants import LOOPBACK, PLATFORMS, TRANSPORTS
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.limits import limit_flag, limits_of
from shared_pathways_service.flags.parsing import (
    choice,
    comma_separated,
    count,
    flag,
    port,
    positive_int,
    prefixed_flags,
    seconds,
)
from shared_pathways_service.flags.tenants import TenantOptions
from shared_pathways_service.runtime.glog import read_log_format
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.serving.connections import ConnectionOptions
from shared_pathways_service.servers.serving.last_requests_file import LAST_REQUESTS_BYTES

__all__ = ["ProxyServerOptions"]


def _size_of_last_requests(text: str) -> int:
    if not text.isdecimal() or not 4096 <= int(text) <= 1 << 16:
        raise ValueError("bytes from 4096 to 65536")
    return int(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyServerOptions(ConnectionOptions, TenantOptions):
    """How a proxy runs."""

    server_port: int | None = flag(
        None, parse=port, help="TCP port; 0: any. By default 29000, or none with --server_socket."
    )
    server_socket: str = flag("", help="Path of a Unix socket to serve on.")
    bind_address: str = flag(LOOPBACK, env="SPS_BIND_ADDRESS", help="Address to bind for TCP.")
    resource_manager_address: str = flag(
        "", help="HOST:29001 or unix:/path; empty: no resource manager, all slices are placed."
    )
    gcs_scratch_location: str = flag("", help="gs://BUCKET/PATH for scratch data.")
    platform: str = flag(
        "cpu",
        parse=choice(*PLATFORMS),
        env="SPS_PLATFORM",
        help="What it computes on: cpu, or cuda: each chip of a slice is a GPU of this machine.",
    )
    transport: str = flag(
        "auto",
        parse=choice(*TRANSPORTS),
        env="SPS_TRANSPORT",
        help="How gRPC is served: by grpcio's core, which is fast and private to it; by its public "
        "API; or auto: by the core where a check of it at the start goes well.",
    )
    ffi_library_dir: str = flag("", help="Directory of the libraries of --ffi_targets.")
    ffi_targets: tuple[str, ...] = flag(
        (),
        parse=comma_separated,
        help="NAME=LIBRARY:SYMBOL of functions that programs may call by XLA's FFI.",
    )
    sidecar_name: str = flag("", help="Name of the colocated Python sidecar; none runs here.")
    xla: tuple[str, ...] = prefixed_flags(help="XLA's own flags, as in XLA_FLAGS.")
    token_file: str = flag("", env="SPS_TOKEN_FILE", help="File with the token clients must show.")
    resource_manager_token_file: str = flag(
        "",
        env="SPS_RESOURCE_MANAGER_TOKEN_FILE",
        help="File with the token that the resource manager asks for.",
    )
    device_memory_limit_bytes: int = limit_flag("device_memory_limit_bytes")
    host_memory_limit_bytes: int | None = limit_flag("host_memory_limit_bytes")
    max_handles: int = limit_flag("max_handles")
    max_requests: int = limit_flag("max_requests")
    max_message_bytes: int = limit_flag("max_message_bytes")
    max_sessions: int = limit_flag("max_sessions")
    max_calls: int = flag(
        Limits.calls,
        parse=positive_int,
        env="SPS_MAX_CALLS",
        help="Calls at a time, sessions and transfers included; those of all kinds that wait, too.",
    )
    request_timeout_s: float = flag(
        Limits.request_timeout_s,
        parse=seconds,
        env="SPS_REQUEST_TIMEOUT_S",
        help="Seconds for the request of a call that is no session and no upload to come.",
    )
    slow_reader_s: float = flag(
        Limits.slow_reader_s,
        parse=seconds,
        env="SPS_SLOW_READER_S",
        help="Seconds for a client to take the last of a call that is over.",
    )
    address_space_limit_bytes: int = flag(
        0, parse=count, help="Of the whole process (RLIMIT_AS); 0: no limit."
    )
    large_transfer_dir: str = flag(
        "", help="Directory below which each session may name one for large buffers."
    )
    compile_cache_dir: str = flag(
        "",
        help="Directory, of this user alone, where compiled programs are kept for other proxies "
        "of the same user; empty: nowhere.",
    )
    compile_cache_bytes: int = flag(
        constants.COMPILE_CACHE_BYTES,
        parse=count,
        help="Bytes of --compile_cache_dir; what was used least recently goes first. 0: no cache.",
    )
    lost_program_grace_s: float = flag(
        constants.LOST_PROGRAM_GRACE_S,
        parse=seconds,
        help="How long a program may run on after its slice was lost, or its session ended, "
        "before this proxy ends.",
    )
    exit_report: str = flag("", help="File that is told, as JSON, why this proxy ended by itself.")
    last_requests_file: str = flag(
        "",
        help="File, mapped into memory, that keeps what runs and the last requests: it tells after "
        "a crash what this proxy was doing.",
    )
    last_requests_bytes: int = flag(
        LAST_REQUESTS_BYTES,
        parse=_size_of_last_requests,
        help="Size of --last_requests_file. (A pod's termination message has 4096.)",
    )
    log_format: str = flag(
        "glog",
        parse=read_log_format,
        env="SPS_LOG_FORMAT",
        help="glog or json: one object a line, for collectors of logs.",
    )
    parent_pid: int = flag(0, help="The process whose end ends this one; 0: none.")
    ready_fd: int | None = flag(
        None, parse=count, help="Descriptor that is told where this process serves."
    )

    def __post_init__(self) -> None:
        """Checks what concerns several flags."""
        TenantOptions.__post_init__(self)
        if self.gcs_scratch_location and not self.gcs_scratch_location.startswith("gs://"):
            raise InvalidRequestError(
                "--gcs_scratch_location", self.gcs_scratch_location, "a location gs://…"
            )

    def limits(self) -> Limits:
        """Returns what clients are given at most."""
        limits = limits_of(self)
        return Limits(
            host_memory_bytes=limits.host_memory_limit_bytes,
            handles=limits.max_handles,
            requests=limits.max_requests,
            message_bytes=limits.max_message_bytes,
            sessions=limits.max_sessions,
            calls=self.max_calls,
            request_timeout_s=self.request_timeout_s,
            slow_reader_s=self.slow_reader_s,
        )
