"""Holds a history against what docs/partitions.md promises. Pure; knows nothing of the scheduler.

A tenant's proxy *believes* in a slice from the line of its log that says that it is placed, until
the line that says that it is not, or the end of its process.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator

from stress.partitions.history import Belief, Fault, History, Recorded

__all__ = ["DIAL_S", "KEEPALIVE_S", "VANISHED_S", "check", "seconds_of_double_belief"]

#: Seconds for a client of the resource manager to be connected again on a link that works: an
#: attempt, the pause before it, and the greeting.
DIAL_S = 10.0
#: Seconds after which a client gives a silent connection up at the latest.
KEEPALIVE_S = 40.0
#: Seconds of silence before which the resource manager ends no stream of a proxy.
VANISHED_S = 60.0
#: Seconds by which times of two processes may differ: they are written in milliseconds.
_SKEW_S = 0.05
#: Impairments that do not cost anybody a slice, however long they last.
_HARMLESS = frozenset({"loss10", "delay", "slow"})
#: Impairments behind which the next try of TCP comes up to twice as late as the outage was long.
_SILENT = frozenset({"silent", "to", "from"})
_GRANTS = frozenset({"slice.placed", "slice.replaced"})
_ENDS = frozenset({"slice.unplaced", "slice.freed"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Hold:
    """A belief from its beginning to its end."""

    tenant: str
    index: int
    slice_id: str
    generation: int
    began: float
    ended: float

    def __str__(self) -> str:
        return f"{self.tenant}'s {self.slice_id} (generation {self.generation})"


def check(history: History) -> list[str]:
    """Returns the violations, in words; each is stable when the history grows."""
    checker = _Checker(history)
    return [
        *checker.holders(),
        *checker.losses(),
        *checker.undetected(),
        *checker.expiries(),
        *checker.beliefs(),
        *checker.generations(),
        *checker.overlaps(),
        *checker.settling(),
    ]


def seconds_of_double_belief(history: History) -> list[float]:
    """Returns for how long two proxies believed in one slice, each time that it was so."""
    return [ended - newer.began for _, newer, ended in _Checker(history).both()]


class _Checker:
    def __init__(self, history: History) -> None:
        self._history = history
        self._times = history.times
        self._hosts = {life.name: life.host for life in history.lives}
        self._grants = {d.generation: d for d in history.decisions if d.kind in _GRANTS}
        self._holds = list(self._believed())

    # ---- the resource manager

    def holders(self) -> Iterator[str]:
        """One holder of a slice at a time, and generations that grow."""
        held: dict[str, Recorded] = {}
        last = 0
        for one in self._history.decisions:
            if one.kind in _GRANTS:
                if (other := held.get(one.slice_id)) is not None:
                    yield f"{one.slice_id} is given to {one.tenant} while {other.tenant} holds it"
                if one.generation <= last:
                    yield f"generation {one.generation} of {one.tenant} follows {last}"
                last = max(last, one.generation)
                held[one.slice_id] = one
            elif one.kind in _ENDS:
                held.pop(one.slice_id, None)

    def losses(self) -> Iterator[str]:
        """No slice is lost without a cause, nor before its time."""
        times = self._times
        for one in self._history.decisions:
            if one.kind != "slice.lost":
                continue
            cuts = [f for f in self._cuts(one.slice_id) if f.began <= one.at + _SKEW_S]
            what = f"{one.slice_id} is lost ({one.reason})"
            if "is hung" in one.reason:
                # Its beats may be on their way for as long again as the outage lasted.
                cuts = [f for f in cuts if one.at <= self._quiet_after(f) + times.hung_s]
                if not cuts:
                    yield f"{what} without a fault of its worker's link"
                elif one.at < min(f.began for f in cuts) + times.hung_s - times.beat_s - _SKEW_S:
                    yield f"{what} before its time"
                elif all(f.cause in _SILENT and f.lasted_s < self._grace_s for f in cuts):
                    yield f"{what} for an outage shorter than the grace of {self._grace_s:g} s"
            elif "is gone" in one.reason or "was replaced" in one.reason:
                is_reset = any(
                    f.cause == "reset" and one.at <= f.ended + times.late_s for f in cuts
                )
                died = self._ended(one.slice_id, since=one.at - times.late_s, by=one.at)
                if not is_reset and not died:
                    yield f"{what}, and its worker lives and its connection was not reset"
            else:
                yield f"{what} for an unknown cause"

    def undetected(self) -> Iterator[str]:
        """A lost worker's slice is lost within the bound."""
        times = self._times
        until = self._history.settled[-1].at if self._history.settled else 0.0
        lost = collections.defaultdict(list)
        for one in self._history.decisions:
            if one.kind == "slice.lost":
                lost[one.slice_id].append(one.at)
        for slice_id in {*lost, *(n for n in self._hosts if n.startswith("slice-"))}:
            for fault in self._cuts(slice_id):
                if fault.cause == "loss30" or fault.began > until:
                    continue
                detected_s = times.hung_s if fault.cause in _SILENT else times.beat_s
                if fault.cause == "from":
                    # The next heartbeat still arrives; TCP sends no other before it is answered.
                    detected_s += times.beat_s
                by = fault.began + detected_s + times.late_s + self._stalled_s(fault.began)
                if fault.ended <= by:
                    continue
                from_ = fault.began - _SKEW_S
                if not any(from_ <= at <= by for at in lost[slice_id]):
                    late = f"{by - fault.began:.1f} s of a fault ({fault.cause}) of its worker"
                    yield f"{slice_id} is not lost within {late}'s link at {fault.began:.1f}"

    def expiries(self) -> Iterator[str]:
        """No tenant expires that was away for less than its time to live."""
        times = self._times
        for one in self._history.decisions:
            if one.kind != "tenant.expired" or self._ended(one.tenant, by=one.at - times.ttl_s):
                continue
            cuts = [f for f in self._cuts(one.tenant) if f.began <= one.at]
            broken = [f for f in cuts if f.cause == "reset" or f.lasted_s >= VANISHED_S]
            broken = [f for f in broken if one.at <= f.ended + times.ttl_s]
            if not broken:
                yield f"{one.tenant} expires, and its stream was not broken"
            elif one.at < min(f.began for f in broken) + times.ttl_s - _SKEW_S:
                yield f"{one.tenant} expires before its time to live is over"
            elif all(f.lasted_s + DIAL_S < times.ttl_s for f in broken):
                yield f"{one.tenant} expires for an outage shorter than its time to live"

    # ---- tenants

    def beliefs(self) -> Iterator[str]:
        """A proxy believes in what was granted, and until that was taken or the proxy ended."""
        taken = {d.generation: d.at for d in self._history.decisions if d.kind in _ENDS}
        for hold in self._holds:
            grant = self._grants.get(hold.generation)
            named = (hold.tenant, hold.index, hold.slice_id)
            if grant is None or named != (grant.tenant, grant.index, grant.slice_id):
                yield f"{hold} was never granted"
            elif hold.began < grant.at - _SKEW_S:
                yield f"{hold} is believed before it is granted"
            was_taken_at = taken.get(hold.generation, math.inf)
            gives_up = hold.ended < math.inf and not self._ended(hold.tenant, by=hold.ended)
            if gives_up and hold.ended < was_taken_at - _SKEW_S:
                yield f"{hold} is given up, and was not taken"

    def generations(self) -> Iterator[str]:
        """A tenant's generations grow."""
        of_tenants = collections.defaultdict(list)
        for belief in self._history.beliefs:
            if belief.generation:
                of_tenants[belief.tenant, belief.index].append(belief.generation)
        for (tenant, index), seen in of_tenants.items():
            for older, newer in itertools.pairwise(seen):
                if newer <= older:
                    yield f"{tenant} hears of generation {newer} of slice {index} after {older}"

    def overlaps(self) -> Iterator[str]:
        """Two proxies believe in one slice only while the older one cannot be notified."""
        for older, newer, ended in self.both():
            if ended > self._notified_by(older.tenant, newer.began):
                yield f"{older} and {newer} are both believed for {ended - newer.began:.1f} s"

    def both(self) -> Iterator[tuple[_Hold, _Hold, float]]:
        """Yields beliefs in one slice at the same time, and until when that lasted or lasts."""
        of_slices = collections.defaultdict(list)
        for hold in self._holds:
            of_slices[hold.slice_id].append(hold)
        for holds in of_slices.values():
            holds.sort(key=lambda hold: hold.generation)
            for older, newer in itertools.pairwise(holds):
                ended = min(older.ended, self._now)
                if ended > newer.began:
                    yield older, newer, ended

    def settling(self) -> Iterator[str]:
        """After the heal, and the start of the processes that ended, all agree within the bound."""
        for settled in self._history.settled:
            if settled.differences:
                yield f"at {settled.at:.1f}: {'; '.join(settled.differences)}"
                continue
            faults = [f for f in self._history.faults if settled.began <= f.began <= settled.at]
            starts = [
                life.at + DIAL_S
                for life in self._history.lives
                if life.what == "started" and settled.began <= life.at <= settled.at
            ]
            by = max([*map(self._heard_by, faults), *starts, settled.healed])
            by += self._times.late_s + self._stalled_s(settled.healed)
            if settled.at > by:
                yield f"all agree only {settled.at - settled.healed:.1f} s after the heal"

    # ---- times

    @property
    def _grace_s(self) -> float:
        """An outage of a worker's link that is shorter costs nothing: see `_SILENT`."""
        return (self._times.hung_s - self._times.beat_s) / 2 - 0.5

    @property
    def _now(self) -> float:
        return self._history.settled[-1].at if self._history.settled else 0.0

    def _cuts(self, name: str) -> list[Fault]:
        """Returns the faults between a process and the resource manager that may cost a slice."""
        host = self._hosts.get(name)
        return [
            fault
            for fault in self._history.faults
            if fault.other == host and fault.host == "rm" and fault.cause not in _HARMLESS
        ]

    def _quiet_after(self, fault: Fault) -> float:
        """Returns until when packets of before may be missing."""
        return fault.ended + min(fault.lasted_s, KEEPALIVE_S) + self._times.late_s

    def _heard_by(self, fault: Fault) -> float:
        """Returns when the other end is reached again at the latest."""
        silent_s = min(fault.lasted_s, KEEPALIVE_S) if fault.cause in _SILENT else 0.0
        return fault.ended + silent_s + DIAL_S

    def _notified_by(self, tenant: str, at: float) -> float:
        """Returns when a tenant has been notified at the latest of what happened at `at`."""
        by = at
        host = self._hosts.get(tenant)
        for fault in self._history.faults:
            if fault.other == host and fault.host == "rm" and fault.began <= by:
                by = max(by, self._heard_by(fault))
        return by + self._times.late_s + self._stalled_s(at)

    def _stalled_s(self, since: float) -> float:
        """Seconds by which this machine's own stalls may delay what is due, from `since` on."""
        stalls = [(at, s) for at, s in self._history.stalls if since - 1 <= at <= since + 60]
        # After a stall the resource manager suspends timeouts for 5 s, again and again for 30 s.
        return min(30.0, sum(s + 5.0 for _, s in stalls))

    def _ended(self, name: str, *, by: float, since: float = 0.0) -> bool:
        """Whether a process of this name ended; its end may have been noticed a little later."""
        return any(
            life.name == name and since <= life.at <= by + self._times.late_s
            for life in self._history.lives
            if life.what == "ended"
        )

    def _believed(self) -> Iterator[_Hold]:
        ends = {life.name: life.at for life in self._history.lives if life.what == "ended"}
        current: dict[tuple[str, int], Belief] = {}
        for belief in self._history.beliefs:
            where = belief.tenant, belief.index
            if (before := current.pop(where, None)) is not None:
                yield _hold(before, belief.at)
            if belief.generation:
                current[where] = belief
        for belief in current.values():
            yield _hold(belief, ends.get(belief.tenant, math.inf))


def _hold(belief: Belief, ended: float) -> _Hold:
    return _Hold(
        tenant=belief.tenant,
        index=belief.index,
        slice_id=belief.slice_id,
        generation=belief.generation,
        began=belief.at,
        ended=ended,
    )
