"""Declares the policies as flags of the resource manager and of the service that starts it."""

from __future__ import annotations

import dataclasses

from shared_pathways_service import constants
from shared_pathways_service.api.priorities import parse_priority
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import (
    flag,
    port,
    positive_int,
    seconds,
    seconds_or_zero,
)

__all__ = ["PolicyOptions", "policy_flags", "policy_names"]

#: Seconds of the idle warning, and between two idle checks, unless the idle time is short.
_WARNING_S = 60.0
_CHECK_INTERVAL_S = 5.0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not days > 0:
        raise ValueError("a number of days above 0")
    return days


def _priority(text: str) -> int:
    try:
        return parse_priority(text)
    except InvalidRequestError as error:
        raise ValueError(error.expected) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Policies for sharing slices, and settings of history and metrics."""

    preemption_grace_s: float = flag(
        constants.PREEMPTION_GRACE_S,
        parse=seconds_or_zero,
        env="SPS_PREEMPTION_GRACE_S",
        help="Preempt tenants so long after the notice; 0: at once.",
    )
    aging_s: float = flag(
        constants.AGING_S,
        parse=seconds_or_zero,
        env="SPS_AGING_S",
        help="Count so long a wait as a doubling of the priority; 0: waiting does not count.",
    )
    idle_release_s: float = flag(
        0.0,
        parse=seconds_or_zero,
        env="SPS_IDLE_RELEASE_S",
        help="Release slices of a tenant after so long without work; 0: never.",
    )
    idle_warning_s: float | None = flag(
        None,
        parse=seconds_or_zero,
        env="SPS_IDLE_WARNING_S",
        help="Warn an idle tenant so long before its slices are released. [default: 60, or half of "
        "the idle time if less]",
    )
    max_slices_per_tenant: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_MAX_SLICES_PER_TENANT",
        help="Refuse requests for more slices than this. [default: no limit]",
    )
    max_slices_per_team: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_MAX_SLICES_PER_TEAM",
        help="Refuse requests by which a team would have more slices, held or waited for. "
        "[default: no limit]",
    )
    max_tenants_per_team: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_MAX_TENANTS_PER_TEAM",
        help="Refuse requests of a team that has so many tenants, waiting ones included. "
        "[default: no limit]",
    )
    max_wait_s: float | None = flag(
        None,
        parse=seconds,
        env="SPS_MAX_WAIT_S",
        help="Refuse requests with a longer queue timeout. [default: no limit]",
    )
    max_priority: int | None = flag(
        None,
        parse=_priority,
        env="SPS_MAX_PRIORITY",
        help="Refuse requests with a higher priority, which would preempt others. [default: no "
        "limit]",
    )
    proxy_memory_limit_bytes: int | None = flag(
        None,
        parse=positive_int,
        env="SPS_PROXY_MEMORY_LIMIT_BYTES",
        help="Limit the memory of each device that clients of a proxy may use. [default: no limit]",
    )
    history_rows: int = flag(
        1_000_000,
        parse=positive_int,
        env="SPS_HISTORY_ROWS",
        help="Keep so many decisions in the history, a tenth of them of tenants without slices; "
        "at most 10000 without a state file.",
    )
    history_days: float = flag(
        90.0,
        parse=_days,
        env="SPS_HISTORY_DAYS",
        help="Keep decisions in the history for so many days.",
    )
    metrics_port: int | None = flag(
        None,
        parse=port,
        env="SPS_METRICS_PORT",
        help="Serve metrics at http://HOST:PORT/metrics; 0: any port. [default: no metrics]",
    )
    metrics_address: str = flag(
        constants.LOOPBACK, env="SPS_METRICS_ADDRESS", help="Bind this address for metrics."
    )

    def __post_init__(self) -> None:
        """Checks flags against each other."""
        if self.idle_release_s and (self.idle_warning_s or 0.0) >= self.idle_release_s:
            raise InvalidRequestError(
                "--idle_warning_s",
                self.idle_warning_s,
                f"less than the {self.idle_release_s:g} s after which idle slices are released",
            )

    @property
    def idle_times(self) -> tuple[float | None, float, float]:
        """Seconds until idle slices are released, of the warning before, and between two checks.

        The first is None if idle slices are not released; then the others are 0.
        """
        release_s = self.idle_release_s
        if not release_s:
            return None, 0.0, 0.0
        warning_s = self.idle_warning_s
        if warning_s is None:
            warning_s = min(_WARNING_S, release_s / 2)
        return release_s, warning_s, min(_CHECK_INTERVAL_S, release_s / 10)


def policy_names() -> tuple[str, ...]:
    """Returns the names of the fields of `PolicyOptions`, in order."""
    return tuple(field.name for field in dataclasses.fields(PolicyOptions))


def policy_flags(options: PolicyOptions) -> list[str]:
    """Returns options as flags for a server, which take precedence over its variables."""
    values = {name: getattr(options, name) for name in policy_names()}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]
