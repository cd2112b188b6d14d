"""What the resource manager goes by, as flags: its own, and those of the service that starts it."""

from __future__ import annotations

import dataclasses
import math

from shared_pathways_service import constants
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import flag, port, positive_int, seconds

__all__ = ["PolicyOptions", "policy_flags", "policy_names"]

#: Seconds: the warning of idleness, and between two looks at it, unless the time is short.
_WARNING_S = 60.0
_LOOK_S = 5.0


def _seconds_or_none(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise ValueError("seconds from 0 up")
    return number


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not days > 0:
        raise ValueError("a number of days above 0")
    return days


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """How slices are shared, and what is kept and told of that."""

    preemption_grace_s: float = flag(
        constants.PREEMPTION_GRACE_S,
        parse=_seconds_or_none,
        env="SPS_PREEMPTION_GRACE_S",
        help="Seconds between the notice that slices are taken and their being taken; 0: at once.",
    )
    aging_s: float = flag(
        constants.AGING_S,
        parse=_seconds_or_none,
        env="SPS_AGING_S",
        help="Seconds of waiting that are worth one doubling of priority; 0: none are.",
    )
    idle_release_s: float = flag(
        0.0,
        parse=_seconds_or_none,
        env="SPS_IDLE_RELEASE_S",
        help="Seconds without work after which a tenant's slices are taken back; 0: never.",
    )
    idle_warning_s: float | None = flag(
        None,
        parse=_seconds_or_none,
        env="SPS_IDLE_WARNING_S",
        help="Seconds before that at which it is warned; by default 60, or half of that time.",
    )
    max_slices_per_tenant: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_MAX_SLICES_PER_TENANT",
        help="Slices that a tenant may ask for at most; by default as many as there are.",
    )
    max_slices_per_team: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_MAX_SLICES_PER_TEAM",
        help="Slices that all tenants of a team may have asked for at most.",
    )
    max_tenants_per_team: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_MAX_TENANTS_PER_TEAM",
        help="Tenants of a team at most, those that wait too.",
    )
    max_wait_s: float | None = flag(
        None,
        parse=seconds,
        env="SPS_MAX_WAIT_S",
        help="Seconds that a tenant may ask to wait for slices at most.",
    )
    proxy_memory_limit_bytes: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_PROXY_MEMORY_LIMIT_BYTES",
        help="Bytes of memory a device that a proxy may give its clients at most.",
    )
    history_rows: int = flag(
        1_000_000,
        parse=positive_int,
        env="SPS_HISTORY_ROWS",
        help="Decisions that the history keeps; without a state file 10000 at most, in memory.",
    )
    history_days: float = flag(
        90.0,
        parse=_days,
        env="SPS_HISTORY_DAYS",
        help="Days after which the history drops a decision.",
    )
    metrics_port: int | None = flag(
        None,
        parse=port,
        env="SPS_METRICS_PORT",
        help="TCP port of http://HOST:PORT/metrics; 0: any. By default there is none.",
    )
    metrics_address: str = flag(
        constants.LOOPBACK, env="SPS_METRICS_ADDRESS", help="Address to bind for it."
    )

    def __post_init__(self) -> None:
        """Checks what concerns several flags."""
        if self.idle_release_s and (self.idle_warning_s or 0.0) >= self.idle_release_s:
            raise InvalidRequestError(
                "--idle_warning_s",
                self.idle_warning_s,
                f"less than the {self.idle_release_s:g} s after which slices are taken back",
            )

    @property
    def idle_times(self) -> tuple[float | None, float, float]:
        """After how long slices are taken back, how long before a warning comes, how often to look.

        In seconds; without the first, the others are 0.
        """
        release_s = self.idle_release_s
        if not release_s:
            return None, 0.0, 0.0
        warning_s = self.idle_warning_s
        if warning_s is None:
            warning_s = min(_WARNING_S, release_s / 2)
        return release_s, warning_s, min(_LOOK_S, release_s / 10)


def policy_names() -> tuple[str, ...]:
    """Returns the fields of `PolicyOptions`, in its order."""
    return tuple(field.name for field in dataclasses.fields(PolicyOptions))


def policy_flags(options: PolicyOptions) -> list[str]:
    """Returns the flags that say the same to a server, whatever variables it has."""
    values = {name: getattr(options, name) for name in policy_names()}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]
