"""Runs schedules of faults, one after the other, on one service."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.deadlines import deadline
from harness.network.namespaces import Network, network
from stress.partitions.checker import check, seconds_of_double_belief
from stress.partitions.fleet import Fleet
from stress.partitions.history import Fault, History, Settled, Times
from stress.partitions.schedules import Planned, conditions, draw_schedule

__all__ = ["WORKERS", "PROXIES", "run"]

WORKERS = ("w0", "w1", "w2")
#: One more than there are slices, so that a freed slice is given to another tenant.
PROXIES = ("p0", "p1", "p2", "p3")
_TIMES = Times(beat_s=0.5, hung_s=5.0, ttl_s=12.0)
_SHORT_S, _MEDIUM_S, _LONG_S = 1.5, 7.0, 16.0
#: Seconds until all must agree, and between two looks.
_SETTLE_S = deadline(90.0)
_LOOK_S = 0.2
_STALLED_S = 1.0
#: The number of the schedule in which proxies are silent until the resource manager gives them up,
#: and for how long.
_VANISHING, _VANISHED_S = 50, 150.0


def run(
    count: int, seed: int, scratch: Path, on_done: Callable[[int, Sequence[str]], None]
) -> dict[str, Any]:
    """Runs schedules; returns what came of them.

    Args:
      count: How many.
      seed: Of the schedules and of random loss.
      scratch: A directory for logs and state.
      on_done: Called after each with its number and its violations.
    """
    draw = random.Random(seed)
    history = History(times=_TIMES)
    violations: list[str] = []
    known: set[str] = set()
    began = time.monotonic()
    with (
        _stall_meter(history),
        network(("eye", "rm", *WORKERS, *PROXIES), seed=seed) as links,
        contextlib.closing(Fleet(links, WORKERS, PROXIES, history, scratch)) as fleet,
    ):
        _settle(fleet, history, began=time.time(), healed=time.time() + _SETTLE_S)
        for number in range(count):
            schedule = draw_schedule(
                draw, WORKERS, PROXIES, short_s=_SHORT_S, medium_s=_MEDIUM_S, long_s=_LONG_S
            )
            if number + 1 == _VANISHING:
                schedule = _vanishing(PROXIES[:2])
            _carry_out(schedule, links, fleet, history)
            new = [what for what in check(history) if what not in known]
            known.update(new)
            violations += [f"schedule {number + 1}: {what}" for what in new]
            on_done(number + 1, new)
            if history.settled[-1].differences:
                break
    return _result(history, violations, seed, time.monotonic() - began)


def _vanishing(proxies: Sequence[str]) -> list[Planned]:
    return [
        Planned(cause="silent", host="rm", other=proxy, begins_s=0.0, ends_s=_VANISHED_S)
        for proxy in proxies
    ]


def _carry_out(schedule: list[Planned], links: Network, fleet: Fleet, history: History) -> None:
    began = time.time()
    steps = sorted(
        [(p.begins_s, True, n) for n, p in enumerate(schedule)]
        + [(p.ends_s, False, n) for n, p in enumerate(schedule)]
    )
    started: dict[int, float] = {}
    for after_s, is_begin, number in steps:
        while (left := began + after_s - time.time()) > 0:
            time.sleep(min(left, _LOOK_S))
            fleet.look_after()
        planned = schedule[number]
        if is_begin:
            started[number] = time.time()
            towards, back = conditions(planned.cause)
            links.set(planned.other, planned.host, towards)
            links.set(planned.host, planned.other, back)
            continue
        links.set(planned.other, planned.host)
        links.set(planned.host, planned.other)
        history.faults.append(
            Fault(
                cause=planned.cause,
                host=planned.host,
                other=planned.other,
                began=started[number],
                ended=time.time(),
            )
        )
    _settle(fleet, history, began=began, healed=time.time())


def _settle(fleet: Fleet, history: History, *, began: float, healed: float) -> None:
    """Waits until all agree, twice in a row; records when, or what did not agree."""
    deadline = time.monotonic() + _SETTLE_S
    agreed_at = 0.0
    while True:
        differences = fleet.differences()
        if not differences and agreed_at:
            break
        agreed_at = 0.0 if differences else time.time()
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    history.settled.append(
        Settled(
            began=began,
            healed=healed,
            at=agreed_at or time.time(),
            differences=tuple(differences),
        )
    )


@contextlib.contextmanager
def _stall_meter(history: History) -> Iterator[None]:
    """Notes when this machine does not run this process for a while."""
    is_over = threading.Event()

    def measure() -> None:
        before = time.monotonic()
        while not is_over.wait(_LOOK_S):
            now = time.monotonic()
            if (stalled_s := now - before - _LOOK_S) > _STALLED_S:
                history.stalls.append((time.time(), stalled_s))
            before = now

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _result(history: History, violations: list[str], seed: int, wall_s: float) -> dict[str, Any]:
    def count(values: Iterator[str]) -> dict[str, int]:
        names = sorted(values)
        return {name: names.count(name) for name in dict.fromkeys(names)}

    settled = history.settled[1:]
    after_s = sorted(one.at - one.healed for one in settled)
    double_s = seconds_of_double_belief(history)
    return {
        "schedules": len(settled),
        "seed": seed,
        "wall_s": round(wall_s, 1),
        "times": dataclasses.asdict(history.times),
        "faults": count(f"{f.cause} {f.host[:1]}-{f.other[:1]}" for f in history.faults),
        "decisions": count(d.kind for d in history.decisions),
        "beliefs": len(history.beliefs),
        "processes_ended": count(life.host[0] for life in history.lives if life.what == "ended"),
        "settled_s": {
            "median": round(after_s[len(after_s) // 2], 2),
            "most": round(after_s[-1], 2),
        },
        "each_settled_s": [round(seconds, 2) for seconds in after_s],
        "double_belief_s": {"times": len(double_s), "most": round(max(double_s, default=0.0), 2)},
        "stalls": len(history.stalls),
        "violations": violations,
    }
