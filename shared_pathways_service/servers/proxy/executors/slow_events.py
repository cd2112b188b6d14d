"""Chooses the verdicts on executors that become events. Pure.

The resource manager accepts ten events of a tenant at once, and then one per minute (ADR 100). Each
verdict takes two, its beginning and its end, and other events need a part.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared_pathways_service.servers.proxy.executors.run_comparison import Change, ExecutorId

__all__ = ["SlowEvents"]

#: The number of verdicts at once, and the seconds for each further one.
_BURST, _INTERVAL_S = 4, 150.0


class SlowEvents:
    """Admits a limited number of verdicts, and the end of each of these. Not thread-safe.

    A verdict that has to wait is admitted later, unless it has ended by then.
    """

    def __init__(self) -> None:
        #: When a whole burst is possible again, in monotonic seconds.
        self._full_at = 0.0
        self._waiting: dict[ExecutorId, Change] = {}

    def admit(self, changes: Iterable[Change], now: float) -> list[Change]:
        """Returns the changes to report now, of these and of those that wait."""
        admitted = []
        for change in changes:
            if change.is_slow:
                self._waiting[change.executor] = change
            elif self._waiting.pop(change.executor, None) is None:
                admitted.append(change)
        while self._waiting and self._takes_one(now):
            executor = next(iter(self._waiting))
            admitted.append(self._waiting.pop(executor))
        return admitted

    def _takes_one(self, now: float) -> bool:
        at = max(now, self._full_at)
        if at - now > (_BURST - 1) * _INTERVAL_S:
            return False
        self._full_at = at + _INTERVAL_S
        return True
