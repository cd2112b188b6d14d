"""Replaces slices whose executors the holder's proxy cannot reach, as it reports.

A first report counts at once: its proxy has waited for that of the worker, which has the better
reason if the executor has ended. Further reports for the same virtual slice wait, longer each time,
so that a proxy that reaches no host at all, or that reports what is not so, does not have executors
started without end.
"""

from __future__ import annotations

from typing import TypeAlias

from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import ExecutorEnded, PlacementUnreachable
from shared_pathways_service.scheduling.book.records import Slice
from shared_pathways_service.scheduling.worker_events import Workers

__all__ = ["UnreachablePlacements"]

#: Seconds until the second report for a virtual slice counts, and the most; each doubles the last.
_SECOND_S, _LONGEST_S = 1.0, 64.0
#: Seconds without a report after which a virtual slice's next one is a first one again.
_CALM_S = 600.0

#: The name of a tenant, its incarnation, and a virtual index of it.
_Key: TypeAlias = tuple[str, str, int]


class UnreachablePlacements:
    """Takes placements from tenants whose proxies cannot use them.

    Its state: the host in each report that waits, by generation; and when a report for a virtual
    slice last counted, with its wait, in the order of these times.
    """

    def __init__(self, ledger: Ledger, deadlines: Deadlines, workers: Workers) -> None:
        self._ledger = ledger
        self._deadlines = deadlines
        self._workers = workers
        self._waiting: dict[int, int | None] = {}
        self._last: dict[_Key, tuple[float, float]] = {}

    def reported(self, event: PlacementUnreachable) -> None:
        """Has the placement end if its tenant, and no other, still holds it."""
        tenant = self._ledger.tenants.get(event.tenant)
        if tenant is None or tenant.incarnation != event.incarnation:
            return
        held = tenant.placed.get(event.virtual_index)
        if held is None or held.generation != event.generation:
            return
        wait_s = self._wait_s(_key(event))
        if not wait_s:
            self._end(held, event, wait_s)
            return
        is_held = self._ledger.held_generations.__contains__
        self._waiting = {one: host for one, host in self._waiting.items() if is_held(one)}
        if event.generation in self._waiting:
            return  # its proxy repeats it on another stream
        self._waiting[event.generation] = event.host_index
        due = self._ledger.now + wait_s
        self._deadlines.add(
            lambda: due if is_held(event.generation) else None,
            lambda: self._end(held, event, wait_s),
        )

    def explains(self, event: ExecutorEnded) -> bool:
        """Returns whether a report that waits is why this executor has ended.

        A proxy that gives a placement up ends its executors on all hosts that it can reach.
        """
        generation = event.generation
        if generation not in self._waiting:
            return False
        # (That of the report may end by itself, once it has no connection any more.)
        return self._waiting[generation] != event.host_index or event.exit_code == 0

    def _wait_s(self, key: _Key) -> float:
        last = self._last
        while last and next(iter(last.values()))[0] <= self._ledger.now - _CALM_S:
            del last[next(iter(last))]
        return min(_LONGEST_S, 2 * last[key][1] or _SECOND_S) if key in last else 0.0

    def _end(self, held: Slice, event: PlacementUnreachable, waited_s: float) -> None:
        key = _key(event)
        self._last.pop(key, None)
        self._last[key] = (self._ledger.now, waited_s)
        self._ledger.void(held, event.generation)
        host = "" if event.host_index is None else f"the executor on host {event.host_index} of "
        why = f": {event.reason}" if event.reason else ""
        reason = f"{event.tenant} cannot reach {host}{held.id}{why}"
        self._workers.lose_executor(held, reason, host=event.host_index)


def _key(event: PlacementUnreachable) -> _Key:
    return event.tenant, event.incarnation, event.virtual_index
