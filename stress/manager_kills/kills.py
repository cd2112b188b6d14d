"""kill -9 of a resource manager under load, repeatedly, and the checks after each kill.

After each kill it is restarted with the same state file, its workers and tenants reconnect by
themselves, and no new requests are made until everything has settled. Then the slices that tenants
believe they hold, the manager's status, and the history must agree.
"""

from __future__ import annotations

import dataclasses
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from harness.processes import DEADLINE_S, VERSIONS, Service, Stream
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book.decisions import Decision
from stress.manager_kills.book import Book, Hold
from stress.manager_kills.crowd import Crowd

__all__ = ["FLAGS", "Aim", "Kill", "Kills"]

#: So long that no tenant expires: those that ended during a restart are released by their owner.
FLAGS = (
    "--preemption_grace_s=0.2",
    "--tenant_ttl_s=30",
    "--recovering_s=30",
    "--num_spares=1",
)
#: Seconds until all must be at rest, and between two looks.
_REST_S = 2 * DEADLINE_S
_LOOK_S = 0.05
#: Seconds between two things that happen, on average, and for how long they do before a kill.
_PACE_S = 0.02
_LOAD_S = 2.0
#: Seconds after an event in which its results are written and sent.
_DEED_S = 0.01

#: ``load``: at any moment of it; ``deed``: right behind something that happens; ``return``: while
#: workers and tenants come back from the kill before.
Aim = Literal["load", "deed", "return"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill, and what came of it.

    Attributes:
      aim: The kind of moment that was drawn.
      held: Placements that tenants knew of when it was dead.
      kept: Of these, how many stood when all was at rest; None: the next kill came before.
      away_s: Until it was started again and ready.
      rest_s: From then until all was at rest.
    """

    aim: Aim
    held: int
    kept: int | None = None
    away_s: float
    rest_s: float | None = None


class Kills:
    """Kills the manager of a service under the load of a crowd.

    Args:
      service: Started with `FLAGS`, no worker in it.
      slices: Of the service.
      tenants: At a time.
      seed: All that is left to chance, but the timing of a real machine, follows from it.

    Attributes:
      book: The history, and the faults found.
      kills: Those that were.
    """

    def __init__(self, service: Service, *, slices: int, tenants: int, seed: int) -> None:
        self.book = Book()
        self.kills: list[Kill] = []
        self._service = service
        self._draw = random.Random(seed)
        self._before: set[Hold] = set()
        self._log: list[Decision] = []
        self._followed: list[Decision] = []
        self._followed_to = 0  # the number of the last
        self._follower = self._follow()
        self.crowd = Crowd(
            service.address, service.stub, slices=slices, tenants=tenants, draw=self._draw
        )

    def kill(self, aim: Aim) -> None:
        """Has things happen, kills the manager, and starts it again."""
        rm = self._service.rm
        delay = self._draw.uniform(0.0, _DEED_S if aim == "deed" else _LOAD_S)
        if aim == "deed":
            self._act_for(self._draw.uniform(0.0, _LOAD_S))
        killed = threading.Event()

        def strike() -> None:
            rm.signal(signal.SIGKILL)
            killed.set()

        killer = threading.Timer(delay, strike)
        killer.start()
        if aim == "return":
            killed.wait()
        else:
            self._act_until(killed.is_set)
        killer.join()
        began = time.monotonic()
        rm.wait()
        self._drain(self._follower)
        held = self._held()
        for _ in range(self._draw.randrange(4)):
            self.crowd.act()
        self._service.start_rm()
        self._follower = self._follow()
        self.kills.append(Kill(aim=aim, held=len(held), away_s=time.monotonic() - began))
        self._before = held

    def rest(self) -> None:
        """Waits until all is at rest, and takes note of what does not come to it."""
        began = time.monotonic()
        differ = self._look()
        while differ and not self.book.faults and time.monotonic() < began + _REST_S:
            time.sleep(_LOOK_S)
            differ = self._look()
        self.book.faults += differ
        if self.kills and self.kills[-1].rest_s is None:
            self.kills[-1] = dataclasses.replace(
                self.kills[-1],
                kept=len(self._before & set(self.book.holds.values())),
                rest_s=time.monotonic() - began,
            )

    def finish(self) -> list[str]:
        """Lets all tenants go; returns the faults of the whole run."""
        self.rest()
        self.crowd.empty()
        self.rest()
        if len(self._followed) > len(self._log):
            self.book.faults.append("a follower received more than the history has")
        for number, (was, now) in enumerate(zip(self._followed, self._log, strict=False), start=1):
            if was != now:
                self.book.faults.append(f"decision {number} was {was} to a follower, now is {now}")
        return self.book.close()

    def close(self) -> None:
        """Ends the crowd."""
        self.crowd.close()

    # ---- load

    def _act_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._act_until(lambda: time.monotonic() >= until)

    def _act_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.crowd.act()
            time.sleep(self._draw.expovariate(1.0 / _PACE_S))

    def _held(self) -> set[Hold]:
        return {hold for tenant in self.crowd.present() for hold in tenant.holds}

    # ---- looks

    def _look(self) -> list[str]:
        """Adds new messages and decisions; returns what has not settled."""
        differ = [] if self.crowd.release() else ["not all that let go are released"]
        for name in _taken(self.crowd.left):
            self.book.leaves(name)
        received = _taken(self.crowd.messages)
        believed = {tenant.name: tenant.holds for tenant in self.crowd.present()}
        status = self._service.status()
        self._read()
        for message in received:
            self.book.receive(message)
        if status.state != "serving":
            differ.append(f"the manager is {status.state}")
        there = {one.name: one.connected for one in status.tenants}
        if there != dict.fromkeys(believed, True):
            odd = there.items() ^ dict.fromkeys(believed, True).items()
            differ.append(f"there should be other tenants: {sorted(odd)}")
        states = {one.id: one.state for one in status.slices}
        for name, mark in self.crowd.marks.items():
            marked = states.get(name) in {"cordoned", "draining"}
            if mark is not None and marked != bool(mark):
                differ.append(f"{name} was answered to be {mark or 'ready'}, is {states.get(name)}")
        holds = {
            one.id: Hold(one.tenant, one.virtual_index, one.id, one.generation)
            for one in status.slices
            if one.tenant
        }
        return differ + self.book.check(believed, holds)

    def _read(self) -> None:
        """Reads the new part of the history."""
        request = pb.GetHistoryRequest(after=self.book.last)
        for page in self._service.stub.GetHistory(request, timeout=DEADLINE_S):
            for message in page.events:
                self._log.append(_decision(message))
                self.book.decide(message.sequence, self._log[-1])

    def _follow(self) -> Stream:
        """Follows the decisions after the last received one."""
        request = pb.WatchRequest(versions=VERSIONS, after=self._followed_to)
        return self._service.stream(self._service.stub.Watch, request)

    def _drain(self, follower: Stream) -> None:
        """Checks the decisions of an ended follower, which must remain in the history."""
        while (message := follower.next()) is not None:
            self._followed.append(_decision(message))
            if self._followed_to and message.sequence != self._followed_to + 1:
                after = f"after {self._followed_to}"
                self.book.faults.append(f"a follower received {message.sequence} {after}")
            self._followed_to = message.sequence
        follower.close()


def _taken(from_queue: queue.SimpleQueue[T]) -> list[T]:
    return [from_queue.get_nowait() for _ in range(from_queue.qsize())]


def _decision(message: pb.EventMessage) -> Decision:
    data: dict[str, Any] = dict(message.data)
    index = data.get("virtual_index")
    return Decision(
        time=0.0,
        kind=message.kind,
        tenant=message.tenant,
        slice=message.slice,
        virtual_index=None if index is None else int(index),
        generation=int(data.get("generation", 0)),
        reason=message.reason,
    )
