"""Ranks tenants by priority and waiting time.

A priority is in a *band*: 0 is in band 0, and from there each doubling of it is one band more
(`band`). So 1 is in band 1, ``low-priority-job`` in 19.9, ``high-priority-job`` in 20.9. A wait of
`RmConfig.aging_s` is worth one band. So no tenant starves: a later one is served before a waiting
tenant only if it comes within `longest_lead` of it. That is one `aging_s` for ``high-priority-job``
over ``low-priority-job``, 20.9 of them over a priority of 0, and never more than 62.

The ranks of two tenants do not change while they wait: one that came `aging_s` later and is one
band higher always ranks the same as the other. So a line that is sorted once stays sorted.

The order decides which tenant gets free slices. Preemption (`scheduling.policies.preemption`)
depends on the priorities alone: however long a tenant waited, it preempts no tenant of its own
priority.
"""

from __future__ import annotations

import math

__all__ = ["band", "longest_lead", "rank_of"]


def band(priority: int) -> float:
    """Returns the band of a priority: 0 for 0, and equally far below it for a negative one."""
    return math.copysign(math.log2(1 + abs(priority)), priority) if priority else 0.0


def longest_lead(lower: int, higher: int, aging_s: float) -> float:
    """Returns how many seconds after a lower-priority tenant a higher one may come and pass it."""
    return max(0.0, band(higher) - band(lower)) * aging_s


def rank_of(priority: int, asked_at: float, order: int, aging_s: float | None) -> tuple[float, int]:
    """Returns the sort key of a tenant: the smallest is served first.

    Args:
      priority: Its priority; any integer.
      asked_at: When it made its request, in seconds.
      order: Its arrival number, which orders simultaneous requests.
      aging_s: The wait that is worth one band, in seconds; None: waits do not count.
    """
    if aging_s is None:
        return (-priority, order)
    return (asked_at - band(priority) * aging_s, order)
