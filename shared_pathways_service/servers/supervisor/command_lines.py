"""Builds the command lines of the service's processes."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from shared_pathways_service.api.proxy_limits import ProxyLimits
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.constants import CUDA, LOCAL_ENGINE
from shared_pathways_service.flags.policies import policy_flags
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.flags.tenants import tenant_flags
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.settings import Settings

__all__ = [
    "Host",
    "ProxyRequest",
    "hosts_of",
    "proxy_arguments",
    "proxy_command",
    "resource_manager_command",
    "worker_command",
]

#: ``-P`` keeps the working directory out of the import path.
_PYTHON = (sys.executable, "-P", "-m")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """One host of a physical slice; all indices are from 0.

    Attributes:
      first_device: The first of this host's GPUs among those of the machine, if it has any.
    """

    slice_number: int
    instance_type: InstanceType
    index: int
    first_device: int = 0

    @property
    def slice_id(self) -> str:
        """The slice's name."""
        return f"slice-{self.slice_number}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyRequest:
    """A checked request for a proxy.

    Attributes:
      session: UUID of the requesting session.
      tcp_port: None: a Unix socket only; 0: also any free port.
      owner_pid: The process whose end ends the proxy; 0: none.
    """

    tenant: TenantRequest
    session: str
    xla_flags: tuple[str, ...]
    ffi_targets: tuple[str, ...]
    colocated_python: bool
    tcp_port: int | None
    owner_pid: int
    owner_start: str
    limits: ProxyLimits


def hosts_of(options: SupervisorOptions) -> list[Host]:
    """Returns every host of every slice, spares included."""
    kinds = [
        InstanceType.parse(text)
        for text, count in options.slices
        for _ in range(count + options.spares)
    ]
    hosts = [
        Host(slice_number=number, instance_type=kind, index=index)
        for number, kind in enumerate(kinds)
        for index in range(kind.hosts)
    ]
    if options.engine == LOCAL_ENGINE or options.platform != CUDA:
        return hosts
    chips = [host.instance_type.chips_per_host for host in hosts]
    return [
        dataclasses.replace(host, first_device=sum(chips[:number]))
        for number, host in enumerate(hosts)
    ]


def resource_manager_command(
    paths: RuntimePaths, options: SupervisorOptions, ready_fd: int, *, first_start: bool
) -> list[str]:
    """Returns the resource manager's command line, for its first start or a later one."""
    counts = [str(count + options.spares) for _, count in options.slices]
    return [
        *_PYTHON,
        "shared_pathways_service.servers.resource_manager",
        "--node_type=resource_manager",
        f"--instance_type={','.join(kind for kind, _ in options.slices)}",
        f"--instance_count={','.join(counts)}",
        f"--num_spares={options.spares}",
        f"--engine={options.engine}",
        f"--server_socket={paths.resource_manager_socket}",
        f"--state_file={paths.resource_manager_state}",
        f"--beat_interval_s={options.beat_interval_s}",
        f"--hung_after_s={options.hung_after_s}",
        f"--tenant_ttl_s={options.tenant_ttl_s}",
        f"--recovering_s={options.recovering_s}",
        *policy_flags(options),
        f"--first_start={str(first_start).lower()}",
        f"--tenant_token_file={paths.tenant_token}",
        *_common(paths.token, ready_fd),
    ]


def worker_command(
    paths: RuntimePaths, options: SupervisorOptions, host: Host, ready_fd: int
) -> list[str]:
    """Returns a worker's command line, which is the same for a restart."""
    return [
        *_PYTHON,
        "shared_pathways_service.servers.worker",
        f"--resource_manager_address=unix:{paths.resource_manager_socket}",
        f"--server_socket={paths.worker_socket(host.slice_number, host.index)}",
        f"--slice_id={host.slice_id}",
        f"--instance_type={host.instance_type}",
        f"--host_index={host.index}",
        f"--platform={options.platform}",
        f"--first_device={host.first_device}",
        *(["--colocated_python=true"] if options.colocated_python else ()),
        *_common(paths.token, ready_fd),
    ]


def proxy_command(*arguments: str) -> list[str]:
    """Returns the command line of a proxy; with ``--standby`` it reads its arguments later."""
    return [*_PYTHON, "shared_pathways_service.servers.proxy", *arguments]


def proxy_arguments(
    paths: RuntimePaths,
    options: SupervisorOptions,
    request: ProxyRequest,
    *,
    settings: Settings,
    uid: str,
    transfer_dir: str,
    ready_fd: int,
) -> list[str]:
    """Returns a proxy's arguments."""
    arguments = [
        f"--resource_manager_address=unix:{paths.resource_manager_socket}",
        f"--resource_manager_token_file={paths.tenant_token}",
        *tenant_flags(request.tenant),
        f"--server_socket={paths.proxy_socket(uid)}",
        f"--exit_report={paths.exit_report(uid)}",
        f"--last_requests_file={paths.last_requests(uid)}",
        f"--lost_program_grace_s={options.lost_program_grace_s}",
        f"--platform={options.platform}",
        *(f"--{name}={value}" for name, value in dataclasses.asdict(request.limits).items()),
        f"--engine={options.engine}",
        *request.xla_flags,
        *_common(paths.proxy_token(uid), ready_fd),
    ]
    if options.engine == LOCAL_ENGINE:
        # (Executors do not cache.)
        arguments.append(f"--compile_cache_dir={settings.cache_dir / 'compiled'}")
        arguments.append(f"--compile_cache_bytes={settings.compile_cache_bytes}")
    if request.ffi_targets:
        arguments.append(f"--ffi_library_dir={options.ffi_library_dir}")
        arguments.append(f"--ffi_targets={','.join(request.ffi_targets)}")
    if request.colocated_python:
        arguments.append("--colocated_python=true")
    if transfer_dir:
        arguments.append(f"--large_transfer_dir={transfer_dir}")
    if request.tcp_port is not None:
        arguments.append(f"--server_port={request.tcp_port}")
    return arguments


def _common(token: Path, ready_fd: int) -> list[str]:
    return [f"--token_file={token}", f"--ready_fd={ready_fd}", f"--parent_pid={os.getpid()}"]
