"""Events that a tenant's proxy reports about itself, through the resource manager."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.tenants import TenantEvent

__all__ = ["MemoryNearLimit", "ProxyReport"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyReport(TenantEvent):
    """An event that the proxy reports; `reason` is the sentence that the history records.

    Names begin with ``proxy.``. The resource manager sets `tenant`, `source` and the times.
    """

    source: str = "proxy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryNearLimit(ProxyReport, name="proxy.memory_near_limit"):
    """A device has more than 90 % of its memory limit in use.

    Reported again only after the use on every device fell below 80 %.

    Attributes:
      device: The device's number in the proxy, from 0; None: unknown.
      used_bytes: Bytes in use on it.
      limit_bytes: The limit of each device.
    """

    device: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None
