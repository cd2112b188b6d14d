"""Events that a tenant's proxy reports about itself, through the resource manager."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.tenants import TenantEvent

__all__ = ["ExecutorSlow", "ExecutorSlowEnded", "MemoryNearLimit", "ProxyReport"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyReport(TenantEvent):
    """An event that the proxy reports; `reason` is the sentence that the history records.

    Names begin with ``proxy.``, or with ``executor.slow``. The resource manager sets `tenant`,
    `source` and the times.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorSlow(ProxyReport, name="executor.slow"):
    """Programs take longer on an executor than on its peers; `reason` has the times.

    A proxy reports at most four at once, and then one per 2.5 minutes; the service's status has the
    others as well. The end of the connection ends it without an `ExecutorSlowEnded`.

    Attributes:
      virtual_index: The tenant's virtual slice.
      slice_id: The physical slice.
      generation: The placement's generation.
      host: The index of the executor's host in the slice.
      program: The name of the program that shows it.
      ratio: How many times as long it takes as on the peers; None: unknown.
    """

    virtual_index: int | None = None
    slice_id: str = ""
    generation: int | None = None
    host: int | None = None
    program: str = ""
    ratio: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorSlowEnded(ProxyReport, name="executor.slow_ended"):
    """An executor that was slow is as fast as its peers again, has ended, or is not compared.

    Attributes:
      virtual_index: The tenant's virtual slice.
      slice_id: The physical slice.
      generation: The placement's generation.
      host: The index of the executor's host in the slice.
    """

    virtual_index: int | None = None
    slice_id: str = ""
    generation: int | None = None
    host: int | None = None
