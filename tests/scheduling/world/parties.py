"""Who takes part in the simulated world: workers and proxies."""

from __future__ import annotations

import dataclasses
import math

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book import messages as m

SMALL = InstanceType.parse("tpuv6e:2x2")
LARGE = InstanceType.parse("tpuv5e:2x4")  # two hosts
BEAT_S = 10.0


@dataclasses.dataclass
class Worker:
    slice_id: str
    kind: InstanceType
    host: int
    incarnation: str = ""
    running: bool = False
    connected: bool = False
    stopped: bool = False
    welcomed_at: int | None = None
    executor: int = 0  # the generation that it runs an executor for, or did until that ended
    serves: bool = False  # that executor
    ended: bool = False  # by itself
    reported: bool = False  # which of these it is, on the present stream
    over: set[int] = dataclasses.field(default_factory=set)  # generations of those before


@dataclasses.dataclass
class Proxy:
    name: str
    incarnation: str
    asks: m.TenantAsked
    arrival: int
    asked_at: float = 0.0
    ends_at: float = math.inf  # its stated lifetime, as far as the disk has known
    noticed_until: float | None = None
    connected: bool = False
    running: bool = False
    ran: bool = False
    away_since: float = 0.0
    came_at: int = 0
    released: bool = False
    honest: bool = True
    tells: bool = True  # whether it works, as all but the oldest do
    worked: int = 0  # looks that saw it at work
    active_at: float = 0.0
    told: int = -1  # the last of them that it has told of
    owes: bool = False  # word of its work, which it was asked for
    warned_until: float | None = None
    answered: bool = False  # that warning
    parked: bool = False
    idle_count: int | None = None  # of the notice by which it is parked
    view: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    older_view: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    executors: dict[int, int] = dataclasses.field(default_factory=dict)  # index: generation
    given_up: dict[int, int] = dataclasses.field(default_factory=dict)  # index: generation
    queued: m.NotifyQueued | None = None
    refused: m.RefuseTenant | None = None

    @property
    def needed(self) -> int:
        return len(self.asks.request.virtual_slices) - self.asks.request.elastic_slices


@dataclasses.dataclass(frozen=True)
class Placing:
    tenant: str
    index: int
    slice_id: str
    step: int
