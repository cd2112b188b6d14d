"""The configuration of a resource manager's core, and its limits of tenants and teams."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from shared_pathways_service import constants
from shared_pathways_service.api.topology import InstanceType

__all__ = ["Limits", "RmConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a service; None: unlimited.

    Attributes:
      tenant_slices: Virtual slices of one tenant, elastic ones included.
      team_slices: Virtual slices of all tenants of a team, waiting tenants included.
      team_tenants: Tenants of a team, waiting ones included.
      wait_s: Seconds that a tenant may ask to wait for slices.
      priority: The highest priority that a tenant may ask for; any whole number.
      memory_bytes: Bytes of device memory that a proxy may give its clients; sent to the proxy.
    """

    tenant_slices: int | None = None
    team_slices: int | None = None
    team_tenants: int | None = None
    wait_s: float | None = None
    priority: int | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "priority" or value is None:
                continue
            if not 0 < value < math.inf:
                raise ValueError(f"{field.name}={value} must be more than 0, or None")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RmConfig:
    """Slices that the service should have, and its times in seconds.

    Attributes:
      slices: Physical slices by type, spares included; the order is that of the service's types.
      spares: How many free, ready slices of each type are withheld for re-placement.
      hung_after_s: A worker without a beat for this long is hung.
      tenant_ttl_s: How long slices, or a place in the queue, outlive a proxy's stream.
      recovering_s: How long a restarted resource manager waits for reports before it grants again.
      starting_grace_s: How long after the start a request that would fit once all slices are ready
        waits for them instead of being refused.
      retell_s: Interval at which waiting tenants are notified of changes of the queue.
      preemption_grace_s: Time between a preemption notice and the preemption; 0: no notice period.
      aging_s: The wait that is worth one band of priority (`scheduling.policies.aging`); None:
        waits do not count.
      idle_release_s: A tenant idle for this long loses its slices; None: never.
      idle_warning_s: How long before that it is warned.
      limits: The limits of a tenant and of a team.
      users_verified: Tenants' users are those of the API server. A tenant without a team counts as
        a team of its user, because it could avoid the limits of teams otherwise.
      executors: Workers run executors: each is assigned the holder of its slice.
      state_lost: The service may not be new and its former state is unknown: it is recovered from
        tenants' and workers' reports. `Restored.state_lost` does the same.
    """

    slices: Mapping[InstanceType, int]
    spares: int = 0
    hung_after_s: float = constants.WORKER_HUNG_S
    tenant_ttl_s: float = constants.TENANT_TTL_S
    recovering_s: float = constants.RECOVERING_S
    starting_grace_s: float = 0.0
    retell_s: float = 1.0
    preemption_grace_s: float = constants.PREEMPTION_GRACE_S
    aging_s: float | None = constants.AGING_S
    idle_release_s: float | None = None
    idle_warning_s: float = 0.0
    limits: Limits = dataclasses.field(default_factory=Limits)
    users_verified: bool = False
    executors: bool = False
    state_lost: bool = False

    def __post_init__(self) -> None:
        if not self.slices:
            raise ValueError("slices: at least one instance type is needed")
        if self.spares < 0:
            raise ValueError(f"spares={self.spares} must be 0 or more")
        if self.preemption_grace_s < 0:
            raise ValueError(f"preemption_grace_s={self.preemption_grace_s} must be 0 or more")
        if self.aging_s is not None and self.aging_s <= 0:
            raise ValueError(f"aging_s={self.aging_s} must be more than 0, or None")
        if not 0 <= self.idle_warning_s < (self.idle_release_s or math.inf):
            raise ValueError(
                f"idle_warning_s={self.idle_warning_s} must be 0 or more, and less than "
                f"idle_release_s={self.idle_release_s}"
            )
        if self.idle_release_s is not None and self.idle_release_s <= 0:
            raise ValueError(f"idle_release_s={self.idle_release_s} must be more than 0, or None")
        for kind, count in self.slices.items():
            if count <= self.spares:
                raise ValueError(
                    f"slices: {count} x {kind} with {self.spares} spares leaves none to grant"
                )
