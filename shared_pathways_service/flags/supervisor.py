"""Declares the flags of the supervisor, which `sps serve` has as options."""

from __future__ import annotations

import dataclasses
import math

from shared_pathways_service import constants
from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.limits import limit_flag
from shared_pathways_service.flags.parsing import choice, count, flag, seconds
from shared_pathways_service.flags.policies import PolicyOptions
from shared_pathways_service.flags.servers import ProcessOptions

__all__ = ["DEFAULT_SLICES", "SupervisorOptions"]

#: The default of `--slices`.
DEFAULT_SLICES = "tpuv6e:2x2=2"

#: Instance types in the order given, each with its count.
Slices = tuple[tuple[str, int], ...]


def _slices(text: str) -> Slices:
    try:
        return tuple(parse_instance_texts([text], field="--slices").items())
    except InvalidRequestError as error:
        raise ValueError(error.expected) from error


def _idle(text: str) -> float:
    return math.inf if text == "inf" else seconds(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SupervisorOptions(ProcessOptions, PolicyOptions):
    """Options of the embedded service; its directories are the user's settings."""

    slices: tuple[tuple[str, int], ...] = flag(
        _slices(DEFAULT_SLICES), parse=_slices, help="Start these slices for tenants: TYPE=COUNT,…"
    )
    spares: int = flag(
        1, parse=count, help="Start so many spare slices of each type, which replace lost ones."
    )
    max_slice_restarts: int = flag(
        constants.MAX_SLICE_RESTARTS,
        parse=count,
        help="Restart a slice's workers at most so often.",
    )
    standby_proxies: int = flag(
        1, parse=count, help="Keep so many started proxies for the next tenants."
    )
    idle_s: float = flag(
        math.inf, parse=_idle, help="End the service after so long without tenants; inf: never."
    )
    platform: str = flag(
        "cpu",
        parse=choice(*constants.PLATFORMS),
        env="SPS_PLATFORM",
        help="Compute on cpu or cuda; tpu: with --engine=distributed only.",
    )
    engine: str = flag(
        constants.LOCAL_ENGINE,
        parse=choice(*constants.ENGINES),
        env="SPS_ENGINE",
        help="Compute in proxies (local), or in executors that workers start (distributed).",
    )
    device_memory_limit_bytes: int = limit_flag("device_memory_limit_bytes")
    host_memory_limit_bytes: int | None = limit_flag("host_memory_limit_bytes")
    max_handles: int = limit_flag("max_handles")
    max_requests: int = limit_flag("max_requests")
    max_message_bytes: int = limit_flag("max_message_bytes")
    max_sessions: int = limit_flag("max_sessions")
    trace_s: int = limit_flag("trace_s")
    trace_bytes: int = limit_flag("trace_bytes")
    ffi_library_dir: str = flag(
        "",
        env="SPS_ALLOW_FFI_LIBRARIES",
        help="Allow tenants to load libraries of this directory into their proxies; empty: none.",
    )
    colocated_python: bool = flag(
        False,
        env="SPS_ALLOW_COLOCATED_PYTHON",
        help="With --engine=distributed, allow tenants to run functions of "
        "jax.experimental.colocated_python on the hosts of their executors. (Other proxies run "
        "them anyway.)",
    )
    beat_interval_s: float = flag(
        constants.WORKER_BEAT_S, parse=seconds, help="Send a worker's heartbeats at this interval."
    )
    hung_after_s: float = flag(
        constants.WORKER_HUNG_S,
        parse=seconds,
        help="Consider a worker hung after so long without a heartbeat.",
    )
    tenant_ttl_s: float = flag(
        constants.TENANT_TTL_S,
        parse=seconds,
        help="Keep a tenant's slices so long after its proxy's stream ended.",
    )
    recovering_s: float = flag(
        constants.RECOVERING_S,
        parse=seconds,
        help="Wait so long for reports after a restart of the resource manager.",
    )
    lost_program_grace_s: float = flag(
        constants.LOST_PROGRAM_GRACE_S,
        parse=seconds,
        help="End a proxy whose program still runs so long after a loss.",
    )

    def __post_init__(self) -> None:
        """Checks flags against each other."""
        super().__post_init__()
        needed = {"--engine": constants.DISTRIBUTED_ENGINE, "--platform": constants.CPU}
        if self.colocated_python and [self.engine, self.platform] != list(needed.values()):
            together = " ".join(f"{name} {value}" for name, value in needed.items())
            # (Users know this option of `sps serve`, or its variable, and not our flag.)
            raise InvalidRequestError(
                "--allow-colocated-python",
                True,
                f"to be given, also as SPS_ALLOW_COLOCATED_PYTHON, only with {together}",
            )
        if self.engine != constants.DISTRIBUTED_ENGINE:
            if self.platform == constants.TPU:
                raise InvalidRequestError(
                    "--platform", self.platform, "cpu or cuda without --engine=distributed"
                )
            return
        if self.ffi_library_dir:
            raise InvalidRequestError(
                "--ffi_library_dir", self.ffi_library_dir, "none with --engine=distributed"
            )
        hosts = sum(
            InstanceType.parse(kind).hosts * (count + self.spares) for kind, count in self.slices
        )
        if self.platform == constants.TPU and hosts > 1:
            raise InvalidRequestError(
                "--platform",
                self.platform,
                f"cpu or cuda with {hosts} hosts, spares included: one process can use a machine's "
                "TPUs",
            )

    @property
    def python_refusal(self) -> str:
        """Why proxies run no colocated Python; empty: they can."""
        if self.platform != constants.CPU:
            return f"no sidecar with the platform {self.platform}"
        if self.engine == constants.DISTRIBUTED_ENGINE and not self.colocated_python:
            return (
                "no sidecar: on executors, functions of tenants run only where the operator allows "
                "it (`sps serve --allow-colocated-python`)"
            )
        return ""

    @property
    def detached(self) -> bool:
        """Whether the service ends by itself when it is idle."""
        return self.idle_s < math.inf
