"""What a scraper reads of an agent."""

from __future__ import annotations

import dataclasses
import socket
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client import Metric

from harness.openmetrics import check_documented, scrape, text_to_families, value
from harness.promql import check_queries
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.agent.scraping import SessionMeter
from shared_pathways_service.events import Event
from shared_pathways_service.homes.base import HomeCounters
from shared_pathways_service.metrics.exposition import render
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.messages import Phase, SliceView, Snapshot
from tests.agent.support import TYPE, Bench, eventually, serve


def told(meter: SessionMeter) -> dict[str, Metric]:
    return {family.name: family for family in text_to_families(render(meter.families()))}


def measured(start: Start, port: int = 0) -> Start:
    return dataclasses.replace(start, metrics_port=port)


def test_each_metric_is_reported_as_documented(bench: Bench) -> None:
    counters = HomeCounters(
        tunnel_opened=5,
        tunnel_connections=2,
        tunnel_redials=1,
        tunnel_sent_bytes=1 << 40,
        tunnel_received_bytes=7,
        link_losses=4,
        link_carriers=2,
        link_failed_dials=9,
        link_replay_bytes=1 << 20,
        link_early_answers=6,
        manager_reconnects=3,
        beat_at=1234.5,
    )
    start = bench.start()
    meter = SessionMeter(start, lambda: counters)
    before = told(meter)
    assert value(before, "sps_agent_phase", phase="new") == 1
    assert not before["sps_agent_start_seconds"].samples
    placed, lost = (
        SliceView(index=index, instance_type=TYPE, state=state)
        for index, state in enumerate(("placed", "unplaced"))
    )
    began = time.time()
    meter.observe(
        Snapshot(
            name=start.request.name,
            phase=Phase.SERVE,
            preempted=True,
            link=LinkView(state="lost", lost_at=1.0),
            position=4,
            slices=(placed, lost),
            timings={"preflight": 0.5, "total": 2.25},
        )
    )
    for kind in ("slice.placed", "slice.unplaced", "slice.placed"):
        meter.count(Event.of(kind, source="rm"))
    now = told(meter)
    check_documented(now.values(), "sps_agent")
    check_queries(now.values(), "sps_agent")
    for name, expected, labels in (
        ("phase", 1, {"phase": "serve"}),
        ("phase", 0, {"phase": "new"}),
        ("phase_seconds", 0.5, {"phase": "preflight"}),
        ("start_seconds", 2.25, {}),
        ("slices", 1, {"state": "placed"}),
        ("slices", 1, {"state": "unplaced"}),
        ("preempted", 1, {}),
        ("link_lost", 1, {}),
        ("queue_position", 4, {}),
        ("events_total", 2, {"kind": "slice.placed"}),
        ("events_total", 1, {"kind": "slice.unplaced"}),
        ("last_beat_timestamp_seconds", 1234.5, {}),
        ("manager_reconnects_total", 3, {}),
        ("tunnel_connections", 2, {}),
        ("tunnel_connections_opened_total", 5, {}),
        ("tunnel_redials_total", 1, {}),
        ("tunnel_sent_bytes_total", 1 << 40, {}),
        ("tunnel_received_bytes_total", 7, {}),
        ("link_losses_total", 4, {}),
        ("link_carriers", 2, {}),
        ("link_failed_dials_total", 9, {}),
        ("link_replay_bytes", 1 << 20, {}),
        ("link_early_answers_total", 6, {}),
    ):
        assert value(now, f"sps_agent_{name}", **labels) == expected, name
    assert began <= value(now, "sps_agent_last_event_timestamp_seconds") <= time.time()
    assert value(now, "sps_agent_info", name=start.request.name, home="fake") == 1


def test_an_agent_serves_them_while_it_lives_and_the_journal_says_where(bench: Bench) -> None:
    start = measured(bench.start())
    with bench.session(start) as (session, _):
        serve(session)
        [entry] = bench.journal.entries()
        assert entry.metrics.startswith("http://127.0.0.1:")
        now = scrape(entry.metrics)
        assert value(now, "sps_agent_phase", phase="serve") == 1
        assert value(now, "sps_agent_slices", state="placed") == 1
        assert value(now, "sps_agent_start_seconds") >= 0
        assert value(now, "sps_agent_events_total", kind="connect.serving") == 1
        bench.home.tell(start.session, "slice.unplaced", "lost", virtual_index=0, generation=1)
        eventually(
            lambda: value(scrape(entry.metrics), "sps_agent_slices", state="unplaced") == 1,
            "the loss",
        )
        assert session.close("done") is None
    with pytest.raises(urllib.error.URLError):
        scrape(entry.metrics)
    assert bench.nothing_left()


def test_nothing_is_served_unless_it_is_asked_for(bench: Bench) -> None:
    with bench.session(bench.start()) as (session, _):
        serve(session)
        [entry] = bench.journal.entries()
        assert entry.metrics == ""


def test_a_port_that_is_taken_stops_nothing(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with bench.session(measured(bench.start(), port)) as (session, heard):
            serve(session)
            event = heard.wait_for("metrics.unavailable")
            assert event.reason is not None
            assert f"127.0.0.1:{port}" in event.reason
            assert "SPS_AGENT_METRICS_PORT=0" in event.reason
            assert [entry.metrics for entry in bench.journal.entries()] == [""]
