"""What counts as work, and when the resource manager is told of it."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from harness.deadlines import deadline
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.proxy.activity import PASSIVE, ActivityReporter
from shared_pathways_service.servers.proxy.session.handlers import HANDLERS
from shared_pathways_service.servers.proxy.session.request_counts import RequestCounts

DEADLINE_S = deadline(60.0)
#: Seconds between two looks that are too many to wait for.
LONG_S = 3600.0


class World:
    """Work that is done when a test says so."""

    def __init__(self) -> None:
        self.count = 0
        self.seen: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.reporter = ActivityReporter(self.look)

    def look(self) -> pb.TenantActivity:
        found = pb.TenantActivity(count=self.count)
        self.seen.put(found.count)
        return found

    def begin(self, period_s: float = LONG_S) -> None:
        self.reporter.begin(period_s, lambda found: self.told.put(found.count))

    def next(self) -> int:
        return self.told.get(timeout=DEADLINE_S)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.reporter.close()


def test_every_kind_of_request_is_work_or_is_none() -> None:
    assert HANDLERS.keys() >= PASSIVE
    assert {
        kind for kind in HANDLERS.keys() - PASSIVE if "delete" in kind or "is_" in kind
    } == set()


def test_requests_that_are_no_work_do_not_count() -> None:
    counts = RequestCounts()
    for kind in (*PASSIVE, "compile_request", "loaded_executable_execute_request"):
        counts.add(kind, 0, 1)
    assert counts.all_but(PASSIVE) == 2


def test_activity_is_reported_at_once_with_work_and_on_request(world: World) -> None:
    world.begin(0.01)
    assert world.next() == 0
    world.count = 1
    assert world.next() == 1
    world.reporter.ask(hurried=False)
    assert world.next() == 1, "asked for, it tells that there was none"
    world.count = 2
    assert world.next() == 2, "what was told once is not told again"


def test_in_a_hurry_it_looks_oftener(world: World) -> None:
    world.begin()
    assert world.next() == 0
    world.reporter.ask(hurried=True)
    assert world.next() == 0
    world.count = 1
    assert world.next() == 1


def test_nothing_is_reported_between_two_streams(world: World) -> None:
    world.begin(0.01)
    assert world.next() == 0
    world.reporter.end()
    world.count = 1
    world.reporter.ask(hurried=True)
    # (A look that began before may still be under way.)
    while world.seen.get(timeout=DEADLINE_S) != 1:
        pass
    second: queue.SimpleQueue[int] = queue.SimpleQueue()
    world.reporter.begin(0.01, lambda found: second.put(found.count))
    assert second.get(timeout=DEADLINE_S) == 1
    assert world.told.empty()
