"""A simulated week: 50 tenants of mixed priority share 8 slices, and nobody starves."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import sys
from collections.abc import Callable

import pytest

from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState
from shared_pathways_service.scheduling.policies.aging import longest_lead
from tests.scheduling.harness import Rm, events_of

WEEK_S = 7 * 24 * 3600.0
SLICES, TENANTS = 8, 50
AGING_S = 600.0
NUMBERS = (0, PRIORITIES["low-priority-job"], PRIORITIES["high-priority-job"])


class Week:
    """Each tenant asks for slices, works, lets go, rests, and asks again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rm = Rm(SLICES, aging_s=AGING_S, hung_after_s=2 * WEEK_S)
        self.start = self.rm.now
        self.numbers = itertools.count()
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.priority: dict[str, int] = {}
        self.wants: dict[str, int] = {}
        self.asked_at: dict[str, float] = {}
        self.ran: set[str] = set()
        self.longest = dict.fromkeys(NUMBERS, 0.0)
        self.overtaken = dict.fromkeys(NUMBERS, 0.0)
        self.preempted = self.served = 0
        for tenant in range(TENANTS):
            self.at(self.random.uniform(0, 3600), lambda t=tenant: self.ask(t))  # type: ignore[misc]

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.rm.now + seconds, next(self.numbers), act))

    def ask(self, tenant: int) -> None:
        name = f"t{tenant}-{next(self.numbers)}"
        self.priority[name] = NUMBERS[tenant % len(NUMBERS)]
        self.wants[name] = self.random.choice((1, 1, 2, 3, 4))
        self.asked_at[name] = self.rm.now
        self.rm.ask(name, self.wants[name], priority=self.priority[name], queue=math.inf)
        self.hear()

    def leave(self, name: str, tenant: int) -> None:
        state = self.rm.tenant(name).state
        if state is TenantState.PREEMPTED:
            self.at(600.0, lambda: self.leave(name, tenant))
            return
        self.rm.release(name)
        self.served += 1
        self.at(self.random.expovariate(1 / 3600.0), lambda: self.ask(tenant))
        self.hear()

    def hear(self) -> None:
        for event in events_of(self.rm.said):
            if event.tenant is not None:
                if event.kind == "tenant.preempted":
                    self.preempted += 1
                elif event.kind == "tenant.running" and event.tenant not in self.ran:
                    self.began(event.tenant)
        self.rm.said.clear()

    def began(self, name: str) -> None:
        self.ran.add(name)
        now, mine = self.rm.now, self.priority[name]
        self.longest[mine] = max(self.longest[mine], now - self.asked_at[name])
        status = self.rm.core.status(now)
        # Who waits for a preemption has its slices promised, and is not kept from them.
        promised = {tenant.preempting_by.split("@")[0] for tenant in status.tenants}
        for entry in status.queue:
            # It came after one that still waits for its first slices, and was served before.
            lead = self.asked_at[name] - self.asked_at[entry.tenant]
            if entry.tenant not in self.ran | promised and lead > 0:
                other = self.priority[entry.tenant]
                bound = longest_lead(other, mine, AGING_S)
                assert lead <= bound, f"{name} passed {entry.tenant} {lead:.0f} s later"
                self.overtaken[other] = max(self.overtaken[other], lead)
        tenant = int(name[1:].split("-", maxsplit=1)[0])
        self.at(self.random.expovariate(1 / 1200.0), lambda: self.leave(name, tenant))

    def run(self) -> None:
        while self.due and self.due[0][0] < self.start + WEEK_S:
            when, _, act = heapq.heappop(self.due)
            while (due := self.rm.core.next_deadline()) is not None and due <= when:
                self.rm.now = max(self.rm.now, due)
                self.rm.do(m.Tick())
                self.hear()
            self.rm.now = max(self.rm.now, when)
            act()


@pytest.mark.thorough
def test_no_tenant_starves_in_a_week_of_mixed_priorities() -> None:
    week = Week(seed=1)
    week.run()
    now = week.rm.now
    for entry in week.rm.core.status(now).queue:
        name = entry.tenant
        if name not in week.ran:
            waited = week.longest[week.priority[name]]
            week.longest[week.priority[name]] = max(waited, now - week.asked_at[name])
    lines = [f"{week.served} requests served, {week.preempted} preemptions"]
    for priority in NUMBERS:
        bound = longest_lead(priority, NUMBERS[-1], AGING_S)
        lines.append(
            f"priority {priority}: waited {week.longest[priority]:.0f} s at most, passed by one "
            f"that came {week.overtaken[priority]:.0f} s later, of the {bound:.0f} s it may be"
        )
    sys.stdout.write("\n".join(["", *lines, ""]))
    assert week.served > 1000
    assert week.preempted > 10
    # Once nobody may pass it any more, it waits for those before it alone.
    assert max(week.longest.values()) < longest_lead(0, NUMBERS[-1], AGING_S) + 24 * 3600
