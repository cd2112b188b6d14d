"""Random schedules of faults on the links of a service. Pure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from types import MappingProxyType

from harness.network.switch import CLEAR, Condition
from stress.partitions.history import Cause

__all__ = ["Planned", "conditions", "draw_schedule"]

_LOST = Condition(loss=1.0)
#: The condition towards the resource manager (or a proxy), and back.
_CONDITIONS: MappingProxyType[Cause, tuple[Condition, Condition]] = MappingProxyType(
    {
        "silent": (_LOST, _LOST),
        "to": (_LOST, CLEAR),
        "from": (CLEAR, _LOST),
        "reset": (Condition(resets=True),) * 2,
        "loss10": (Condition(loss=0.1),) * 2,
        "loss30": (Condition(loss=0.3),) * 2,
        "delay": (Condition(delay_s=0.25),) * 2,
        "slow": (Condition(bytes_per_s=4_000),) * 2,
    }
)
_CAUSES: tuple[Cause, ...] = (
    *("silent", "silent", "to", "from", "reset", "reset"),
    *("loss10", "loss30", "delay", "slow"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A fault of a link that begins and ends so many seconds after the schedule's start."""

    cause: Cause
    host: str
    other: str
    begins_s: float
    ends_s: float


def conditions(cause: Cause) -> tuple[Condition, Condition]:
    """Returns the conditions towards a fault's `host`, and back."""
    return _CONDITIONS[cause]


def draw_schedule(
    draw: random.Random,
    workers: Sequence[str],
    proxies: Sequence[str],
    *,
    short_s: float,
    medium_s: float,
    long_s: float,
) -> list[Planned]:
    """Draws the faults of one schedule: at most one for each link.

    Args:
      draw: The source of chance.
      workers: Hosts of workers.
      proxies: Hosts of proxies.
      short_s: An outage of this length costs no slice.
      medium_s: An outage of this length costs a worker's slice.
      long_s: An outage of this length costs a tenant its slices, where its connection is reset.
    """
    links = [("rm", host) for host in (*workers, *proxies)]
    if draw.random() < 0.15:
        # The resource manager's host alone, cut off from all others.
        cause, begins_s = draw.choice(_CAUSES), draw.uniform(0.0, 1.0)
        ends_s = begins_s + _length(draw, short_s, medium_s, long_s)
        return [
            Planned(cause=cause, host=host, other=other, begins_s=begins_s, ends_s=ends_s)
            for host, other in links
        ]
    links += [(proxy, worker) for proxy in proxies for worker in workers]
    weights = [10.0 if host == "rm" else 1.0 for host, _ in links]
    chosen = dict.fromkeys(draw.choices(links, weights, k=draw.randint(1, 4)))
    schedule = []
    for host, other in chosen:
        begins_s = draw.uniform(0.0, 2.0)
        ends_s = begins_s + _length(draw, short_s, medium_s, long_s)
        cause = draw.choice(_CAUSES)
        schedule.append(
            Planned(cause=cause, host=host, other=other, begins_s=begins_s, ends_s=ends_s)
        )
    return schedule


def _length(draw: random.Random, short_s: float, medium_s: float, long_s: float) -> float:
    (most,) = draw.choices((short_s, medium_s, long_s), (0.45, 0.35, 0.2))
    return most * draw.uniform(0.5, 1.0) if most == short_s else most * draw.uniform(0.8, 1.2)
