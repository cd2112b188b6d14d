"""In which order tenants are served: by priority, and the longer they wait the sooner.

A priority is in a *band*: 0 is in band 0, and from there each doubling of it is one band more
(`band`). So 1 is in band 1, ``low-priority-job`` in 19.9, ``high-priority-job`` in 20.9. A wait of
`RmConfig.aging_s` is worth one band. Therefore nobody starves: whoever comes later is served before
a waiting tenant only within `longest_lead` of it, which for ``high-priority-job`` over
``low-priority-job`` is one `aging_s`, over a priority of 0 it is 20.9 of them, and never more than
62.

What two tenants are compared by does not change while they wait: one that came `aging_s` later and
is one band higher is as far at any time. So a line that is sorted once stays sorted.

The order says who gets what is free. Who may take slices from whom
(`scheduling.policies.preemption`) is decided by the priorities alone: however long a tenant waited,
it preempts none of its own priority.
"""

from __future__ import annotations

import math

__all__ = ["band", "longest_lead", "rank_of"]


def band(priority: int) -> float:
    """Returns the band of a priority: 0 for 0, and equally far below it for a negative one."""
    return math.copysign(math.log2(1 + abs(priority)), priority) if priority else 0.0


def longest_lead(lower: int, higher: int, aging_s: float) -> float:
    """Returns how many seconds after one of lower priority a higher one may come and pass it."""
    return max(0.0, band(higher) - band(lower)) * aging_s


def rank_of(priority: int, asked_at: float, order: int, aging_s: float | None) -> tuple[float, int]:
    """Returns what sorts tenants as they are served: the smallest first.

    Args:
      priority: Any.
      asked_at: When it asked, in seconds.
      order: Its arrival number, which decides between those that asked at once.
      aging_s: What a band is worth, in seconds; None: a wait is worth nothing.
    """
    if aging_s is None:
        return (-priority, order)
    return (asked_at - band(priority) * aging_s, order)
