"""Compares the recorded decisions of a resource manager with what its tenants received.

Pure: takes decisions of the history and messages to tenants, and returns contradictions. The
history defines the order: the end of a slice's placement comes before its next placement, whenever
the messages about it arrived.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.decisions import Decision

__all__ = ["Book", "Hold", "TenantMessage"]

_GRANTS = frozenset({DecisionKind.PLACED, DecisionKind.REPLACED})
_ENDS = frozenset({DecisionKind.UNPLACED, DecisionKind.FREED})
_BEGINNINGS = frozenset({DecisionKind.QUEUED, DecisionKind.RUNNING})
#: After these a tenant is none any more.
_LAST = frozenset({DecisionKind.RELEASED, DecisionKind.EXPIRED, DecisionKind.REFUSED})
#: Why a tenant that wants its slices may lose one all the same. That the manager was killed, or
#: that somebody came back too late after it, is none of these.
_CAUSES = re.compile(
    r"^preempted by |is drained by an operator$|^worker 0 of \S+ (is gone|was replaced)"
)


@dataclasses.dataclass(frozen=True)
class Hold:
    """One placement of one virtual slice of one tenant."""

    tenant: str
    index: int
    slice_id: str
    generation: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantMessage:
    """A message to a tenant.

    Attributes:
      tenant: The recipient.
      what: The field of `TenantUpdate`, or ``placed`` and ``unplaced``.
      hold: With these two, of which placement.
      reason: Its reason, if it has one.
    """

    tenant: str
    what: str
    hold: Hold | None = None
    reason: str = ""


class Book:
    """The history so far, and its contradictions, also with messages to tenants.

    Attributes:
      last: The number of the last decision.
      holds: The holder of each slice.
      kinds: How many decisions there are of each kind.
      messages: The number of messages to tenants by kind.
      faults: Contradictions, in words.
    """

    def __init__(self) -> None:
        self.last = 0
        self.holds: dict[str, Hold] = {}
        self.kinds: collections.Counter[str] = collections.Counter()
        self.messages: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self._highest = 0
        self._grants: dict[int, Hold] = {}
        self._ends: dict[int, Decision] = {}
        self._placed: dict[tuple[str, int], int] = {}
        self._over: dict[str, str] = {}
        self._known: set[str] = set()
        self._leaving: set[str] = set()
        self._running: set[str] = set()
        self._preempted: collections.Counter[str] = collections.Counter()
        self._reported_running: set[str] = set()
        self._reported_preempted: collections.Counter[str] = collections.Counter()

    @property
    def of_tenants(self) -> Mapping[str, set[Hold]]:
        """What each tenant holds that holds anything."""
        held = collections.defaultdict(set)
        for hold in self.holds.values():
            held[hold.tenant].add(hold)
        return held

    def leaves(self, tenant: str) -> None:
        """A tenant ends: later changes of its slices are its own."""
        self._leaving.add(tenant)

    # ---- the history

    def decide(self, number: int, one: Decision) -> None:
        """Takes in the next decision of the history."""
        # (A history begins with any number.)
        if self.last and number != self.last + 1:
            self._fault(f"decision {number} follows {self.last}")
        self.last = number
        self.kinds[one.kind] += 1
        if one.kind in _GRANTS:
            self._grant(number, one)
        elif one.kind in _ENDS:
            self._end(number, one)
        elif one.tenant:
            self._known.add(one.tenant)
            self._decide_tenant(number, one)

    def _grant(self, number: int, one: Decision) -> None:
        hold = _hold(one)
        if hold.generation <= self._highest:
            self._fault(f"decision {number}: generation {hold.generation} after {self._highest}")
        self._highest = max(self._highest, hold.generation)
        if (other := self.holds.get(hold.slice_id)) is not None:
            self._fault(f"decision {number}: {hold} is placed while {other} is")
        where = (hold.tenant, hold.index)
        if where in self._placed:
            self._fault(f"decision {number}: {hold} is placed and is on {self._placed[where]}")
        if hold.tenant in self._over:
            self._fault(f"decision {number}: {hold} after its {self._over[hold.tenant]}")
        self._grants[hold.generation] = self.holds[hold.slice_id] = hold
        self._placed[where] = hold.generation

    def _end(self, number: int, one: Decision) -> None:
        hold = _hold(one)
        if self.holds.get(hold.slice_id) != hold:
            self._fault(f"decision {number}: {hold} ends, held is {self.holds.get(hold.slice_id)}")
            return
        del self.holds[hold.slice_id], self._placed[hold.tenant, hold.index]
        self._ends[hold.generation] = one
        if hold.tenant in self._leaving or _CAUSES.search(one.reason):
            return
        self._fault(f"decision {number}: {hold} was lost for no good cause: {one.reason}")

    def _decide_tenant(self, number: int, one: Decision) -> None:
        name, kind = one.tenant, one.kind
        if kind in _BEGINNINGS and self._over.get(name) == DecisionKind.REFUSED:
            # A kill prevented its message, and it has asked again.
            del self._over[name]
        if kind == DecisionKind.PREEMPTED:
            if name not in self._running:
                self._fault(f"decision {number}: {name} is preempted and did not run")
            self._running.discard(name)
            self._preempted[name] += 1
        elif kind == DecisionKind.RUNNING:
            if name in self._running:
                self._fault(f"decision {number}: {name} starts twice")
            self._running.add(name)
        elif kind in _LAST:
            if name in self._over and kind != DecisionKind.REFUSED:
                self._fault(f"decision {number}: {kind} of {name} after its {self._over[name]}")
            if kind == DecisionKind.EXPIRED and name not in self._leaving:
                self._fault(f"decision {number}: {name} was given up: {one.reason}")
            self._over[name] = kind
            self._running.discard(name)
        elif kind not in _BEGINNINGS:
            self._fault(f"decision {number}: {kind} of {name}: {one.reason}")

    def receive(self, message: TenantMessage) -> None:
        """Adds a message to a tenant; its decision has been added before."""
        name, hold = message.tenant, message.hold
        self.messages[message.what] += 1
        if message.what == "placed":
            assert hold is not None
            if self._grants.get(hold.generation) != hold:
                granted = self._grants.get(hold.generation)
                self._fault(f"{name} received {hold}, granted was {granted}")
        elif message.what == "unplaced":
            assert hold is not None
            end = self._ends.get(hold.generation)
            if end is None or _hold(end) != hold:
                self._fault(f"{name} received the end of {hold} ({message.reason}), not so: {end}")
        elif message.what == "running":
            self._reported_running.add(name)
        elif message.what == "queued" and name in self._reported_running:
            self._reported_running.discard(name)
            self._reported_preempted[name] += 1
            if self._reported_preempted[name] > self._preempted[name]:
                self._fault(f"{name} received more preemptions than {self._preempted[name]}")
        elif message.what == "refused" and self._over.get(name) not in _LAST:
            self._fault(
                f"{name} was refused ({message.reason}), of which the history knows nothing"
            )

    def check(self, believed: Mapping[str, set[Hold]], status: Mapping[str, Hold]) -> list[str]:
        """Returns how beliefs, status and history differ after everything has settled.

        Args:
          believed: The slices that each present tenant believes it holds.
          status: The holder of each slice in the manager's status.
        """
        differ = [
            f"{name} believes {sorted(holds, key=str)}, the history has {has}"
            for name, holds in believed.items()
            if holds != (has := self.of_tenants.get(name, set()))
        ]
        if status != self.holds:
            odd = set(status.values()) ^ set(self.holds.values())
            differ.append(f"the status differs from the history in {sorted(odd, key=str)}")
        strangers = self.of_tenants.keys() - believed.keys()
        differ += [f"{name} is gone and holds {self.of_tenants[name]}" for name in strangers]
        return differ

    def close(self) -> list[str]:
        """Returns all faults; all tenants have ended."""
        for name in sorted(self._leaving & self._known - self._over.keys()):
            self._fault(f"{name} has left, of which the history knows nothing")
        return self.faults

    def _fault(self, words: str) -> None:
        self.faults.append(words)


def _hold(one: Decision) -> Hold:
    assert one.virtual_index is not None
    return Hold(one.tenant, one.virtual_index, one.slice, one.generation)
