"""Watchers of a tenant hear of the starts of its executors once, also after a restart."""

from __future__ import annotations

import asyncio

from shared_pathways_service.events import Event
from shared_pathways_service.events.tenants import ExecutorStarted, SlicePlaced
from shared_pathways_service.homes.manager_news import TenantView
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.servers.resource_manager.followers import Watchers
from shared_pathways_service.servers.resource_manager.outbox import Outbox
from tests.scheduling.harness import Rm, events_of
from tests.scheduling.test_executor_assignments import serve


def watchers_of(rm: Rm) -> Watchers:
    return Watchers(lambda tenant: rm.core.status(rm.now, tenant), 100)


def announce(rm: Rm, watchers: Watchers) -> None:
    """Sends what was announced since the last call."""
    for event in events_of(rm.said):
        watchers.announce(event)
    rm.said.clear()
    watchers.catch_up()


def sent(outbox: Outbox[pb.EventMessage]) -> list[Event]:
    """Ends a stream; returns what was sent on it."""
    messages: list[pb.EventMessage] = []

    async def write(message: pb.EventMessage) -> None:
        messages.append(message)

    outbox.end()
    asyncio.run(outbox.send(write))
    return [event_of(message) for message in messages]


def test_executors_that_served_before_a_restart_are_not_reported_again() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")
    watchers = watchers_of(rm)
    own = watchers.add("ada")
    serve(rm, "slice-0", 1)
    announce(rm, watchers)
    view = TenantView()
    before = [new.kind for event in sent(own) for new in view.hear(event)]
    assert before.count("executor.started") == 1

    rm = rm.restarted()
    watchers = watchers_of(rm)
    own = watchers.add("ada")
    rm.come_back("ada", (0, "slice-0", 1))
    # The last one to come back reports its executor when the recovery is over.
    rm.join("slice-0")
    announce(rm, watchers)
    serve(rm, "slice-0", 1)
    announce(rm, watchers)
    assert [new.kind for event in sent(own) for new in view.hear(event)] == []


def test_starts_across_a_restart_are_reported_once() -> None:
    rm = Rm(2, executors=True)
    rm.ask("ada", 2)
    watchers = watchers_of(rm)
    view = TenantView()
    for event in sent(watchers.add("ada")):
        view.hear(event)

    # The executors of slice-0 begin to serve while there is no resource manager.
    rm = rm.restarted()
    watchers = watchers_of(rm)
    own, others = watchers.add("ada"), watchers.add("bob")
    rm.join("slice-0")
    serve(rm, "slice-0", 1)
    rm.join("slice-1")
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert rm.state == "serving"
    announce(rm, watchers)
    serve(rm, "slice-1", 2)
    announce(rm, watchers)

    events = sent(own)
    placed = [event for event in events if isinstance(event, SlicePlaced)]
    assert [(one.virtual_index, one.starting) for one in placed] == [
        (0, None),
        (1, None),
        (0, False),
        (1, True),
    ]
    news = [new for event in events for new in view.hear(event)]
    started = [new for new in news if isinstance(new, ExecutorStarted)]
    assert [(one.virtual_index, one.generation) for one in started] == [(0, 1), (1, 2)]
    assert not any(isinstance(new, SlicePlaced) for new in news)
    assert sent(others) == []
