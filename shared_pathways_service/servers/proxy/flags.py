"""Declares the flags of the proxy: those of Google's image, and ours."""

from __future__ import annotations

import dataclasses
from collections import Counter

from shared_pathways_service import constants
from shared_pathways_service.constants import PLATFORMS, TRANSPORTS
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
from shared_pathways_service.flags.servers import ServerOptions
from shared_pathways_service.flags.tenants import TenantOptions
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.serving.connections import ConnectionOptions
from shared_pathways_service.servers.serving.last_requests_file import LAST_REQUESTS_BYTES

__all__ = ["ProxyServerOptions"]

_LAST_PORT = 65535


def _size_of_last_requests(text: str) -> int:
    if not text.isdecimal() or not 4096 <= int(text) <= 1 << 16:
        raise ValueError("bytes from 4096 to 65536")
    return int(text)


def _slow_ratio(text: str) -> float:
    least, most = constants.SLOW_EXECUTOR_RATIOS
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not least <= number <= most:
        raise ValueError(f"a number from {least:g} to {most:g}")
    return number


def _slow_runs(text: str) -> int:
    least, most = constants.SLOW_EXECUTOR_RUN_COUNTS
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"a whole number from {least} to {most}")
    return int(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyServerOptions(ServerOptions, ConnectionOptions, TenantOptions):
    """Options of a proxy."""

    server_port: int | None = flag(
        None,
        parse=port,
        help="Serve on this TCP port; 0: any. [default: 29000, or none with --server_socket]",
    )
    resource_manager_address: str = flag(
        "",
        help="Connect to the resource manager at HOST:29001 or unix:/path; empty: all slices are "
        "placed without one.",
    )
    platform: str = flag(
        "cpu",
        parse=choice(*PLATFORMS),
        env="SPS_PLATFORM",
        help="Compute on cpu, or on cuda, where each chip of a slice is a GPU of this machine. "
        "With --engine=distributed, the platform of the executors: cpu, cuda or tpu.",
    )
    engine: str = flag(
        constants.LOCAL_ENGINE,
        parse=choice(*constants.ENGINES),
        env="SPS_ENGINE",
        help="Compute in this process (local), or on executors (distributed): those that the "
        "resource manager names, or those of --executors.",
    )
    executors: tuple[str, ...] = flag(
        (),
        parse=comma_separated,
        help="Compute on the executors at these addresses: HOST:PORT,… for each host of the first "
        "virtual slice, then of the second one, and so on; only without a resource manager.",
    )
    executor_token_file: str = flag("", help="Send the token in this file to the executors.")
    collective_timeout_s: int = flag(
        constants.COLLECTIVE_TIMEOUT_S,
        parse=positive_int,
        help="With --engine=distributed, fail a program if one of its hosts has waited so long for "
        "the others in a collective.",
    )
    slow_executor_ratio: float = flag(
        constants.SLOW_EXECUTOR_RATIO,
        parse=_slow_ratio,
        env="SPS_SLOW_EXECUTOR_RATIO",
        help="With --engine=distributed, report an executor as slow whose programs take longer "
        "than this multiple of the time on its peers.",
    )
    slow_executor_runs: int = flag(
        constants.SLOW_EXECUTOR_RUNS,
        parse=_slow_runs,
        env="SPS_SLOW_EXECUTOR_RUNS",
        help="Report it after this number of such runs of a program in a row, and its end after "
        "this number of usual ones.",
    )
    transport: str = flag(
        "auto",
        parse=choice(*TRANSPORTS),
        env="SPS_TRANSPORT",
        help="Serve gRPC, and drive executors, with grpcio's private core, which is fast, with "
        "its public API, or auto: with the core if a check at the start succeeds.",
    )
    ffi_library_dir: str = flag("", help="Load the libraries of --ffi_targets from this directory.")
    ffi_targets: tuple[str, ...] = flag(
        (),
        parse=comma_separated,
        help="Allow programs to call these functions by XLA's FFI: NAME=LIBRARY:SYMBOL,…",
    )
    colocated_python: bool = flag(
        False,
        help="Run functions of jax.experimental.colocated_python, in a process of each session.",
    )
    sidecar_name: str = flag("", help="Name of the colocated Python sidecar; ignored.")
    xla: tuple[str, ...] = prefixed_flags(help="Pass flags to XLA, as XLA_FLAGS does.")
    token_file: str = flag(
        "", env="SPS_TOKEN_FILE", help="Require the token in this file from clients."
    )
    resource_manager_token_file: str = flag(
        "",
        env="SPS_RESOURCE_MANAGER_TOKEN_FILE",
        help="Send the token in this file to the resource manager.",
    )
    identity_token_file: str = flag(
        "",
        env="SPS_IDENTITY_TOKEN_FILE",
        help="Prove the tenant's user to the resource manager by the pod's token in this file.",
    )
    link_port: int = flag(
        0,
        parse=port,
        help="Also accept resumable links on this TCP port, from clients with the token of "
        "--token_file; 0: none.",
    )
    link_keep_s: float = flag(
        constants.PROXY_DEADLINE_S,
        parse=seconds,
        help="Keep the session of a link for so long while no connection of its client is left.",
    )
    device_memory_limit_bytes: int = limit_flag("device_memory_limit_bytes")
    host_memory_limit_bytes: int | None = limit_flag("host_memory_limit_bytes")
    max_handles: int = limit_flag("max_handles")
    max_requests: int = limit_flag("max_requests")
    max_message_bytes: int = limit_flag("max_message_bytes")
    max_sessions: int = limit_flag("max_sessions")
    trace_s: int = limit_flag("trace_s")
    trace_bytes: int = limit_flag("trace_bytes")
    max_calls: int = flag(
        Limits.calls,
        parse=positive_int,
        env="SPS_MAX_CALLS",
        help="Limit the concurrent calls, including sessions, transfers and waiting calls.",
    )
    request_timeout_s: float = flag(
        Limits.request_timeout_s,
        parse=seconds,
        env="SPS_REQUEST_TIMEOUT_S",
        help="End a call whose request does not arrive in so long; not sessions and uploads.",
    )
    slow_reader_s: float = flag(
        Limits.slow_reader_s,
        parse=seconds,
        env="SPS_SLOW_READER_S",
        help="End a call whose client does not read its end for so long.",
    )
    address_space_limit_bytes: int = flag(
        0, parse=count, help="Limit the address space of the process (RLIMIT_AS); 0: no limit."
    )
    large_transfer_dir: str = flag(
        "", help="Allow each session to name a directory below this one for large buffers."
    )
    compile_cache_dir: str = flag(
        "",
        help="Cache compiled programs in this directory, which only this user can access; empty: "
        "no cache.",
    )
    compile_cache_bytes: int = flag(
        constants.COMPILE_CACHE_BYTES,
        parse=count,
        help="Limit the size of --compile_cache_dir; least recently used entries are evicted. 0: "
        "no cache.",
    )
    lost_program_grace_s: float = flag(
        constants.LOST_PROGRAM_GRACE_S,
        parse=seconds,
        help="End this proxy if a program still runs so long after its slice was lost or its "
        "session ended.",
    )
    exit_report: str = flag(
        "", help="Write the reason why this proxy ended by itself to this file, as JSON."
    )
    last_requests_file: str = flag(
        "",
        help="Record running programs and the last requests in this memory-mapped file, for a "
        "report after a crash.",
    )
    last_requests_bytes: int = flag(
        LAST_REQUESTS_BYTES,
        parse=_size_of_last_requests,
        help="Size of --last_requests_file. (A pod's termination message has 4096 bytes.)",
    )

    def __post_init__(self) -> None:
        """Checks flags against each other."""
        super().__post_init__()
        if self.link_port and not self.token_file:
            raise InvalidRequestError(
                "--link_port",
                self.link_port,
                "0 without --token_file: a link serves only clients with a token",
            )
        if self.colocated_python and self.platform != "cpu":
            raise InvalidRequestError(
                "--colocated_python", "true", f"left out with --platform={self.platform}"
            )
        if self.engine == constants.DISTRIBUTED_ENGINE:
            self._check_distributed()
        elif self.platform == constants.TPU:
            raise InvalidRequestError(
                "--platform", self.platform, "cpu or cuda without --engine=distributed"
            )
        elif self.executors:
            raise InvalidRequestError(
                "--executors", ",".join(self.executors), "none without --engine=distributed"
            )

    @property
    def places_executors(self) -> bool:
        """Whether the resource manager names the executors of each placement."""
        is_distributed = self.engine == constants.DISTRIBUTED_ENGINE
        return is_distributed and bool(self.resource_manager_address)

    def _check_distributed(self) -> None:
        if self.resource_manager_address:
            if self.executors:
                raise InvalidRequestError(
                    "--executors",
                    ",".join(self.executors),
                    "none with --resource_manager_address: the resource manager names them",
                )
        else:
            self._check_executors()
        refused = (
            ("--ffi_targets", ",".join(self.ffi_targets), "empty"),
            # (Programs are compiled on other machines, whose CPUs this one does not know.)
            ("--compile_cache_dir", self.compile_cache_dir, "empty"),
        )
        for name, value, expected in refused:
            if value:
                raise InvalidRequestError(name, value, f"{expected} with --engine=distributed")

    def _check_executors(self) -> None:
        hosts = sum(instance_type.hosts for instance_type in self.instance_types())
        if len(self.executors) != hosts:
            raise InvalidRequestError(
                "--executors",
                ",".join(self.executors),
                f"{hosts} addresses, one for each host of --virtual_slices",
            )
        for address in self.executors:
            host, _, number = address.rpartition(":")
            if not host or not number.isdecimal() or not 0 < int(number) <= _LAST_PORT:
                raise InvalidRequestError("--executors", address, "HOST:PORT")
        for address, times in Counter(self.executors).items():
            if times > 1:
                raise InvalidRequestError("--executors", address, "one address for each host")

    def limits(self) -> Limits:
        """Returns the limits of clients."""
        limits = limits_of(self)
        return Limits(
            host_memory_bytes=limits.host_memory_limit_bytes,
            handles=limits.max_handles,
            requests=limits.max_requests,
            message_bytes=limits.max_message_bytes,
            sessions=limits.max_sessions,
            trace_s=limits.trace_s,
            trace_bytes=limits.trace_bytes,
            calls=self.max_calls,
            request_timeout_s=self.request_timeout_s,
            slow_reader_s=self.slow_reader_s,
        )
