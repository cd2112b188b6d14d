"""Options of `sps serve`, except those of the resource manager's policies."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from shared_pathways_service import constants
from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.proxy_limits import LARGEST_LIMIT, LIMITS, ProxyLimits
from shared_pathways_service.cli.options.policy_options import Policies
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.supervisor import DEFAULT_SLICES, SupervisorOptions

__all__ = ["ServeOptions"]


def _limit(name: str) -> Any:
    """Returns the option of a proxy's limit, with the variable that the proxy itself has."""
    limit = LIMITS[name]
    return typer.Option(min=limit.least, max=LARGEST_LIMIT, help=limit.help, envvar=limit.variable)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Settings of the embedded service and of its display."""

    slices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=COUNT",
            help="Start these slices in addition to --spares; repeatable, or comma-separated. "
            f"[default: {DEFAULT_SLICES}]",
        ),
    ] = None
    spares: Annotated[
        int,
        typer.Option(
            min=0,
            help="Start so many spare slices of each type, which replace failed ones and are not "
            "granted to requests.",
        ),
    ] = 1
    max_slice_restarts: Annotated[
        int,
        typer.Option(min=0, help="Restart a slice's workers at most so often."),
    ] = constants.MAX_SLICE_RESTARTS
    standby_proxies: Annotated[
        int, typer.Option(min=0, help="Keep so many started proxies for the next tenants.")
    ] = 1
    platform: Annotated[
        str,
        typer.Option(
            envvar="SPS_PLATFORM",
            help="Compute on cpu, or on cuda, where each chip of a slice is a GPU; with --engine "
            "distributed also on tpu, with one slice of one host and no spare.",
        ),
    ] = "cpu"
    engine: Annotated[
        str,
        typer.Option(
            envvar="SPS_ENGINE",
            help="Compute in the tenants' proxies (local), or in executors, one process for each "
            "host of a tenant's slices (distributed).",
        ),
    ] = constants.LOCAL_ENGINE
    device_memory_limit_bytes: Annotated[int, _limit("device_memory_limit_bytes")] = (
        ProxyLimits.device_memory_limit_bytes
    )
    host_memory_limit_bytes: Annotated[int | None, _limit("host_memory_limit_bytes")] = None
    max_handles: Annotated[int, _limit("max_handles")] = ProxyLimits.max_handles
    max_requests: Annotated[int, _limit("max_requests")] = ProxyLimits.max_requests
    max_message_bytes: Annotated[int, _limit("max_message_bytes")] = ProxyLimits.max_message_bytes
    max_sessions: Annotated[int, _limit("max_sessions")] = ProxyLimits.max_sessions
    trace_s: Annotated[int, _limit("trace_s")] = ProxyLimits.trace_s
    trace_bytes: Annotated[int, _limit("trace_bytes")] = ProxyLimits.trace_bytes
    allow_ffi_libraries: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="SPS_ALLOW_FFI_LIBRARIES",
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="Allow tenants to load shared libraries of this directory into their own proxies, "
            "by proxy_options=['ffi_targets:NAME=LIBRARY:SYMBOL']. [default: none]",
        ),
    ] = None
    allow_colocated_python: Annotated[
        bool,
        typer.Option(
            "--allow-colocated-python",
            envvar="SPS_ALLOW_COLOCATED_PYTHON",
            help="With --engine distributed, allow tenants to run Python on the hosts of their "
            "executors, by proxy_options=['sidecar:true'].",
        ),
    ] = False
    beat_interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Send a worker's heartbeats at this interval.")
    ] = constants.WORKER_BEAT_S
    hung_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Consider a worker hung after so long without a heartbeat."
        ),
    ] = constants.WORKER_HUNG_S
    tenant_ttl: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Keep a tenant's slices so long after its proxy's stream ended."
        ),
    ] = constants.TENANT_TTL_S
    lost_program_grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="End a proxy whose program still runs so long after a loss."
        ),
    ] = constants.LOST_PROGRAM_GRACE_S
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every event as a line of JSON.")
    ] = False

    def for_supervisor(self, policies: Policies) -> SupervisorOptions:
        """Returns the supervisor's options.

        Raises:
          InvalidRequestError: An option is wrong.
        """
        self._check()
        counts = parse_instance_texts(self.slices or [DEFAULT_SLICES])
        return SupervisorOptions(
            slices=tuple(counts.items()),
            spares=self.spares,
            max_slice_restarts=self.max_slice_restarts,
            standby_proxies=self.standby_proxies,
            platform=self.platform,
            engine=self.engine,
            device_memory_limit_bytes=self.device_memory_limit_bytes,
            host_memory_limit_bytes=self.host_memory_limit_bytes,
            max_handles=self.max_handles,
            max_requests=self.max_requests,
            max_message_bytes=self.max_message_bytes,
            max_sessions=self.max_sessions,
            trace_s=self.trace_s,
            trace_bytes=self.trace_bytes,
            ffi_library_dir=str(self.allow_ffi_libraries or ""),
            colocated_python=self.allow_colocated_python,
            beat_interval_s=self.beat_interval,
            hung_after_s=self.hung_after,
            tenant_ttl_s=self.tenant_ttl,
            lost_program_grace_s=self.lost_program_grace,
            **dataclasses.asdict(policies),
        )

    def _check(self) -> None:
        for field, value in (
            ("--beat-interval", self.beat_interval),
            ("--hung-after", self.hung_after),
            ("--tenant-ttl", self.tenant_ttl),
            ("--lost-program-grace", self.lost_program_grace),
        ):
            if not 0 < value < float("inf"):
                raise InvalidRequestError(field, value, "seconds, more than 0")
        if self.platform not in constants.PLATFORMS:
            known = ", ".join(constants.PLATFORMS)
            raise InvalidRequestError("--platform", self.platform, f"one of {known}")
        if self.engine not in constants.ENGINES:
            known = ", ".join(constants.ENGINES)
            raise InvalidRequestError("--engine", self.engine, f"one of {known}")
        if self.engine == constants.DISTRIBUTED_ENGINE and self.allow_ffi_libraries:
            raise InvalidRequestError(
                "--allow-ffi-libraries",
                str(self.allow_ffi_libraries),
                "none with --engine distributed",
            )
        if self.hung_after <= self.beat_interval:
            raise InvalidRequestError("--hung-after", self.hung_after, "more than --beat-interval")
