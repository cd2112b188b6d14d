"""Agents that send metrics: how long they stay, and what a session does not wait for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import psutil

from shared_pathways_service.agent.messages import Start
from shared_pathways_service.agent.request import start_of, this_requester
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.session.cloud_metrics import PREFIX
from shared_pathways_service.testing.google_monitoring import FakeMonitoring
from tests.agent.monitoring import (
    DEADLINE_S,
    LEVELS,
    UNAVAILABLE,
    MakeMonitoring,
)
from tests.agent.support import Bench, eventually, serve

# ---- agents that are processes


def wants_metrics(start: Start) -> Start:
    request = dataclasses.replace(start.request, collect_service_metrics=True)
    return dataclasses.replace(start, request=request)


def settled(fake: FakeMonitoring) -> bool:
    last = {point.metric.removeprefix(PREFIX): point.value for point in fake.points}
    return {name: last.get(name) for name in LEVELS} == dict.fromkeys(LEVELS, 0)


def test_the_agent_outlives_the_block_until_gauges_are_zero(
    bench: Bench, monitoring: MakeMonitoring
) -> None:
    fake = monitoring(spacing_s=10.0)
    start = wants_metrics(bench.start(place=False))
    with bench.session(start) as (session, heard):
        bench.home.tell(start.session, "proxy.serving")
        eventually(lambda: fake.values("num_users_waiting") == [1], "somebody who waits")
        bench.home.tell(start.session, "tenant.running", placed=1, wanted=1)
        bench.home.tell(
            start.session,
            "slice.placed",
            virtual_index=0,
            slice_id="s",
            generation=1,
            instance_type="tpuv6e:2x2",
        )
        serve(session)
        eventually(lambda: fake.values("capacity_in_use") == [4], "chips in use")
        agent = psutil.Process(session.pid)
        assert session.close("done") is None
        # The block is over, and all of it gone but for the agent.
        assert bench.nothing_left()
        assert agent.is_running()
    assert not settled(fake)
    eventually(lambda: settled(fake), "zeros")
    session._process.wait(DEADLINE_S)
    assert fake.values("num_active_users") == [1, 0]
    assert fake.values("num_successful_reqs") == [1]
    assert UNAVAILABLE not in heard.kinds


def test_a_session_does_not_wait_for_metrics_that_are_unavailable(
    bench: Bench, monitoring: MakeMonitoring, credentials: Path
) -> None:
    monitoring()
    credentials.unlink()
    with bench.session(wants_metrics(bench.start())) as (session, heard):
        serve(session)
        heard.wait_for(UNAVAILABLE)
        assert bench.log.read_text().count("metrics are not sent") == 1
        assert session.close("done") is None
        assert not session.state.lingers
        assert session._process.wait(DEADLINE_S) == 0
    assert heard.kinds.count(UNAVAILABLE) == 1
    assert bench.nothing_left()


def test_without_a_request_no_metrics_are_sent(bench: Bench, monitoring: MakeMonitoring) -> None:
    fake = monitoring()
    with bench.session(bench.start()) as (session, _):
        serve(session)
        assert session.close("done") is None
        assert not session.state.lingers
        assert session._process.wait(DEADLINE_S) == 0
    assert fake.calls == []


def test_connect_requests_metrics(own_directories: Path) -> None:
    settings = Settings.load()
    for wanted in (True, False):
        start = start_of(
            SessionRequest.build(this_requester(), collect_service_metrics=wanted), settings
        )
        assert start.request.collect_service_metrics is wanted
        assert Start.from_json(start.to_json()).request.collect_service_metrics is wanted
