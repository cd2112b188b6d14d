"""Flags of the supervisor, and the same as `sps serve` makes them."""

from __future__ import annotations

import dataclasses
import math

from shared_pathways_service import constants
from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.limits import limit_flag
from shared_pathways_service.flags.parsing import choice, count, flag, seconds
from shared_pathways_service.flags.policies import PolicyOptions
from shared_pathways_service.runtime.glog import read_log_format

__all__ = ["DEFAULT_SLICES", "SupervisorOptions"]

#: What a service has when nobody said what: `--slices` of each.
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
class SupervisorOptions(PolicyOptions):
    """How the embedded service runs; directories are the user's settings."""

    log_format: str = flag(
        "glog",
        parse=read_log_format,
        env="SPS_LOG_FORMAT",
        help="glog or json: one object a line, for collectors of logs.",
    )
    slices: tuple[tuple[str, int], ...] = flag(
        _slices(DEFAULT_SLICES), parse=_slices, help="TYPE=COUNT,… that tenants can have."
    )
    spares: int = flag(1, parse=count, help="Slices of each type beside them, for re-placement.")
    max_slice_restarts: int = flag(
        constants.MAX_SLICE_RESTARTS,
        parse=count,
        help="Restarts of a slice's workers before the slice is given up.",
    )
    standby_proxies: int = flag(1, parse=count, help="Proxies kept warm for the next tenants.")
    idle_s: float = flag(
        math.inf, parse=_idle, help="Ends the service when nobody used it for so long; inf: never."
    )
    platform: str = flag(
        "cpu",
        parse=choice(*constants.PLATFORMS),
        env="SPS_PLATFORM",
        help="What proxies compute on: cpu or cuda.",
    )
    device_memory_limit_bytes: int = limit_flag("device_memory_limit_bytes")
    host_memory_limit_bytes: int | None = limit_flag("host_memory_limit_bytes")
    max_handles: int = limit_flag("max_handles")
    max_requests: int = limit_flag("max_requests")
    max_message_bytes: int = limit_flag("max_message_bytes")
    max_sessions: int = limit_flag("max_sessions")
    ffi_library_dir: str = flag(
        "",
        env="SPS_ALLOW_FFI_LIBRARIES",
        help="Directory of libraries that tenants may load into their proxies; empty: none.",
    )
    beat_interval_s: float = flag(
        constants.WORKER_BEAT_S, parse=seconds, help="Seconds between two beats of a worker."
    )
    hung_after_s: float = flag(
        constants.WORKER_HUNG_S, parse=seconds, help="Without a beat, when a worker counts as hung."
    )
    tenant_ttl_s: float = flag(
        constants.TENANT_TTL_S, parse=seconds, help="How long slices outlive a proxy's stream."
    )
    recovering_s: float = flag(
        constants.RECOVERING_S,
        parse=seconds,
        help="How long a restarted resource manager awaits reports.",
    )
    lost_program_grace_s: float = flag(
        constants.LOST_PROGRAM_GRACE_S,
        parse=seconds,
        help="How long a program may go on running on a lost slice.",
    )
    ready_fd: int | None = flag(
        None, parse=count, help="Descriptor that is told where this process serves."
    )

    @property
    def detached(self) -> bool:
        """Whether the service ends by itself."""
        return self.idle_s < math.inf
