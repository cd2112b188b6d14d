"""Events of proxies: passed on and recorded, and dropped where they are invalid or too many."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from harness.openmetrics import scrape, value
from harness.processes import Service, Stream
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.events import Event
from shared_pathways_service.events.proxy import MemoryNearLimit
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_message, event_of
from shared_pathways_service.scheduling.book.messages import TenantAsked
from shared_pathways_service.servers.resource_manager.proxy_reports import ProxyReports
from tests.servers.conftest import MakeService

NEAR = MemoryNearLimit(reason="device 1 is full", device=1, used_bytes=95, limit_bytes=100)


class Reports:
    """The door for events, with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self._reports = ProxyReports(lambda: self.now)

    def read(self, event: Event | pb.EventMessage, tenant: str = "ada") -> dict[str, Any] | None:
        """Returns the event in its flat form; None if it is dropped."""
        message = event_message(event) if isinstance(event, Event) else event
        request = TenantRequest(name=tenant, virtual_slices=())
        asked = TenantAsked(request=request, incarnation="1")
        read = self._reports.read(asked, message)
        return None if read is None else json.loads(read.event)


def test_an_event_is_its_tenants_and_a_proxys() -> None:
    forged = MemoryNearLimit(reason="why", tenant="eve", source="rm", device=2)
    read = Reports().read(forged)
    assert read is not None
    assert "time" not in read
    assert Event.from_dict(read) == MemoryNearLimit(reason="why", tenant="ada", device=2)


def test_an_event_of_a_newer_proxy_is_passed_on() -> None:
    newer = Event.of("proxy.too_new", reason="why", data={"number": 7, "text": "a\nb"})
    read = Reports().read(newer)
    assert read is not None
    assert (read["kind"], read["data"]) == ("proxy.too_new", {"number": 7, "text": "a\nb"})


def _with_data(data: dict[str, Any]) -> pb.EventMessage:
    message = pb.EventMessage(kind="proxy.new")
    message.data.update(data)
    return message


@pytest.mark.parametrize(
    "event",
    [
        Event.of("slice.placed", data={"slice_id": "slice-0", "generation": 1}),
        Event.of("proxy.exited", reason="forged"),
        Event.of("proxy.UPPER"),
        Event.of("proxy." + "x" * 65),
        Event.of("proxy.new", reason="x" * 257),
        Event.of("proxy.new", reason="two\nlines"),
        Event.of("proxy.new", data={"text": "x" * 5000}),
        _with_data({"number": math.nan}),
        _with_data({"nested": {"a": [1]}}),
        pb.EventMessage(kind="proxy.new", duration_s=math.inf),
    ],
    ids=lambda event: event.kind[:12],
)
def test_an_invalid_event_is_dropped(event: Event | pb.EventMessage) -> None:
    assert Reports().read(event) is None


def test_a_flood_of_events_is_dropped_tenant_by_tenant() -> None:
    reports = Reports()
    assert [reports.read(NEAR) is not None for _ in range(12)] == [True] * 10 + [False] * 2
    assert reports.read(NEAR, "eve") is not None
    reports.now += 59.0
    assert reports.read(NEAR) is None
    reports.now += 1.0
    assert [reports.read(NEAR) is not None for _ in range(2)] == [True, False]
    reports.now += 3600.0
    assert [reports.read(NEAR) is not None for _ in range(12)] == [True] * 10 + [False] * 2


def _next(watch: Stream, kind: str) -> pb.EventMessage:
    message: pb.EventMessage = watch.next()
    while message.kind != kind:
        message = watch.next()
    return message


def test_watchers_receive_an_event_and_the_history_records_it(make_service: MakeService) -> None:
    service: Service = make_service("--metrics_port=0")
    watch = service.watch("ada")
    tenant = service.tenant("ada", priority=0)
    assert tenant.expect("welcome").takes_events
    tenant.send(pb.TenantMessage(event=pb.EventMessage(kind="slice.placed")))
    for event in (NEAR, Event.of("proxy.too_new", reason="why")):
        tenant.send(pb.TenantMessage(event=event_message(event)))
    received = event_of(_next(watch, "proxy.memory_near_limit"))
    assert (received, received.tenant) == (MemoryNearLimit(**_fields(), tenant="ada"), "ada")
    _next(watch, "proxy.too_new")
    pages = service.stub.GetHistory(pb.GetHistoryRequest(kinds=["proxy.memory_near_limit"]))
    [recorded] = [event for page in pages for event in page.events]
    assert (recorded.tenant, recorded.reason) == ("ada", "device 1 is full")
    scraped = scrape(service.metrics_url())
    assert value(scraped, "sps_rm_decisions_total", kind="proxy.memory_near_limit") == 1
    assert value(scraped, "sps_rm_decisions_total", kind="other") == 1
    tenant.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
    assert _next(watch, "tenant.gone").reason == "done"


def _fields() -> dict[str, Any]:
    return {
        "reason": NEAR.reason,
        "device": NEAR.device,
        "used_bytes": NEAR.used_bytes,
        "limit_bytes": NEAR.limit_bytes,
    }
