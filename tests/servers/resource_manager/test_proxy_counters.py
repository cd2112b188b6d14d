"""Counters of proxies: collected for one scraper; no proxy can spoil the others' text."""

from __future__ import annotations

import math

from harness.openmetrics import scrape, text_to_families, value
from shared_pathways_service.events import Event
from shared_pathways_service.metrics.exposition import render
from shared_pathways_service.metrics.families import Family, Kind, Sample
from shared_pathways_service.metrics.measurement_messages import message_of
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_message
from shared_pathways_service.servers.resource_manager.proxy_counters import ProxyCounters
from tests.servers.conftest import MakeService


def family(name: str, *samples: Sample, kind: Kind = "counter", unit: str = "") -> Family:
    return Family(name, kind, "Of a proxy.", samples, unit)


REQUESTS = family("sps_proxy_requests", Sample(3, {"kind": "x"}))


def test_a_proxys_invalid_counters_are_dropped_and_the_others_remain() -> None:
    counters = ProxyCounters()
    for name in ("ada", "bob"):
        counters.put(name, object(), message_of([REQUESTS]))
    wrong = [
        # Its kind is not the others'.
        family("sps_proxy_requests", Sample(1), kind="gauge"),
        family("sps_rm_slices", Sample(1), kind="gauge"),
        family("sps_proxy_requests_total", Sample(1), kind="gauge"),
        family("sps_proxy_x\n# EOF", Sample(1)),
        family("sps_proxy_y", Sample(-1), Sample(math.nan, {"a": "b"})),
        family("sps_proxy_z", Sample(1, {"connection": "ada"}), Sample(2, {"a b": ""})),
        family("sps_proxy_w", Sample(1, {"a": '"\n'}), Sample(2, {"a": '"\n'}), kind="gauge"),
        family("sps_proxy_v_seconds", Sample(1), kind="info", unit="seconds"),
    ]
    # The last one twice, once with another kind.
    twice = [
        family("sps_proxy_u", Sample(1)),
        *[family("sps_proxy_u", Sample(4), kind="gauge")] * 2,
    ]
    counters.put("eve", object(), message_of([*wrong, *twice]))
    found = {one.name: one for one in text_to_families(render(counters.families()))}
    samples = found["sps_proxy_requests"].samples
    assert [(one.labels["connection"], one.value) for one in samples] == [("ada", 3), ("bob", 3)]
    assert [one.value for one in found["sps_proxy_w"].samples] == [2]
    assert [one.value for one in found["sps_proxy_u"].samples] == [4]
    others = {"sps_proxy_y", "sps_proxy_z"}
    assert found.keys() <= {"sps_proxy_requests", "sps_proxy_w", "sps_proxy_u", *others}
    assert not any(found[name].samples for name in found.keys() & others)
    # `sps status --openmetrics` prints what it receives.
    [received] = counters.messages("eve")
    names = [one.name for one in received.families]
    assert set(names) <= {"sps_proxy_w", "sps_proxy_u", *others}
    assert len(names) == len(set(names))


def test_the_last_report_of_a_connected_proxy_is_kept() -> None:
    now = 100.0
    counters = ProxyCounters(lambda: now)
    old, new = object(), object()
    counters.put("ada", old, message_of([REQUESTS]))
    large = family("sps_proxy_large", Sample(1, {"text": "x" * 300_000}))
    counters.put("ada", old, message_of([large]))
    now = 107.0
    [report] = counters.messages("ada")
    assert (report.tenant, report.age_s, report.families[0].name) == (
        "ada",
        7.0,
        "sps_proxy_requests",
    )
    assert list(counters.messages("bob")) == []
    # The proxy has connected again, and its old stream ends late.
    counters.put("ada", new, message_of([REQUESTS]))
    counters.forget("ada", old)
    assert len(list(counters.messages())) == 1
    counters.forget("ada", new)
    assert list(counters.messages()) == []


def test_counters_are_served_until_their_proxy_ends(make_service: MakeService) -> None:
    service = make_service("--metrics_port=0", "--proxy_counters_s=7")
    tenant = service.tenant("ada")
    assert tenant.expect("welcome").counters_s == 7
    watch = service.watch("ada")
    tenant.send(pb.TenantMessage(counters=message_of([REQUESTS])))
    # The manager has read the counters once it reports an event that was sent after them.
    after = event_message(Event.of("proxy.after", reason="why"))
    tenant.send(pb.TenantMessage(event=after))
    while watch.next().kind != after.kind:
        pass
    scraped = scrape(service.metrics_url())
    assert value(scraped, "sps_proxy_requests_total", connection="ada", kind="x") == 3
    [report] = service.stub.GetProxyCounters(pb.GetProxyCountersRequest())
    assert report.tenant == "ada"
    tenant.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
    tenant.status()
    assert list(service.stub.GetProxyCounters(pb.GetProxyCountersRequest())) == []
