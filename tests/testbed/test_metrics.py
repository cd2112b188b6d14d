"""What a session in a cluster tells Cloud Monitoring and a scraper, from the user's machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import deadline, wait_until
from harness.openmetrics import scrape, text_to_families, value
from harness.programs import sps
from harness.testbed.clients import client, nothing_left, tenant
from harness.testbed.kills import served
from shared_pathways_service.testing.testbed import Namespace, Testbed
from tests.agent.monitoring import PROJECT, google_user, monitoring_at_hand

MEASURED = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, collect_service_metrics=True) as held:
    say("serves", name=held.proxy_job_name)
    wait_for("leave")
say("left", trouble=[event.reason for event in heard if event.kind == "metrics.unavailable"])
"""
SCRAPED = """
import jax, numpy as np
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as held:
    there = jax.device_put(np.ones(1_000_000, np.float32), held.devices[0])
    say("holds", name=held.proxy_job_name, sum=float((there + there).sum()))
    wait_for("leave")
"""
DEADLINE_S = deadline(120.0)
#: Of one slice.
CHIPS = 4


@pytest.fixture(scope="module")
def namespace(testbed: Testbed) -> Iterator[Namespace]:
    """The namespace of one service with two slices."""
    with served(testbed) as service:
        yield service.namespace


def test_a_session_in_a_cluster_is_reported_until_its_end(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> None:
    with (
        google_user(monkeypatch, own_directories),
        monitoring_at_hand(monkeypatch) as use,
    ):
        fake = use()
        with client(namespace, MEASURED) as running:
            name = running.expect("serves", timeout=DEADLINE_S)["name"]
            assert fake.wait_until(lambda: CHIPS in fake.values("capacity_in_use"), DEADLINE_S)
            running.tell("leave")
            assert running.expect("left")["trouble"] == []
            assert running.wait() == 0
        assert fake.wait_until(lambda: fake.values("capacity_in_use")[-1] == 0, DEADLINE_S)
        nothing_left(namespace)
        points = fake.points
    assert {point.labels["job_name"] for point in points} == {name}
    assert {point.labels["cluster_name"] for point in points} == {"testbed"}
    assert {point.project for point in points} == {PROJECT}
    assert [p.value for p in points if p.metric.endswith("/num_successful_reqs")] == [1]


def with_counters(words: tuple[str, ...]) -> dict[str, Any] | None:
    """Returns what `sps status` tells, once it has a proxy's counters."""
    told: dict[str, Any] = json.loads(sps("status", *words, "--json").stdout)
    return told if told.get("proxies") else None


def test_what_goes_through_the_tunnel_is_counted_and_found_by_status(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPS_AGENT_METRICS_PORT", "0")
    monkeypatch.setenv("SPS_PROXY_DEADLINE_S", "30")  # a beat each 6 s
    for name, text in tenant(namespace).items():
        monkeypatch.setenv(name, text)
    with client(namespace, SCRAPED) as running:
        held = running.expect("holds", timeout=DEADLINE_S)
        assert held["sum"] == 2_000_000
        words = ("--context=testbed", f"--namespace={namespace.name}")
        # Proxies report their counters to the resource manager, as soon as they can.
        told = wait_until("the proxy's counters", lambda: with_counters(words))
        [agent] = told["agents"]
        assert agent["name"] == held["name"]
        assert f"metrics of {held['name']}: {agent['metrics']}\n" in sps("status", *words).stdout
        counted = text_to_families(sps("status", *words, "--openmetrics").stdout)
        named = {family.name: family for family in counted}
        assert value(named, "sps_proxy_info", connection=held["name"]) == 1
        assert [proxy["name"] for proxy in told["proxies"]] == [held["name"]]
        now = scrape(agent["metrics"])
        assert value(now, "sps_agent_info", name=held["name"], home="kubernetes") == 1
        assert value(now, "sps_agent_phase", phase="serve") == 1
        assert value(now, "sps_agent_tunnel_connections") >= 1
        assert value(now, "sps_agent_tunnel_connections_opened_total") >= 2  # the probe's was one
        assert value(now, "sps_agent_tunnel_sent_bytes_total") > 4_000_000
        assert 0 < value(now, "sps_agent_tunnel_received_bytes_total") < 4_000_000
        assert value(now, "sps_agent_phase_seconds", phase="tunnel") > 0

        def beats() -> list[object]:
            return list(scrape(agent["metrics"])["sps_agent_last_beat_timestamp_seconds"].samples)

        wait_until("the first beat", beats)
        running.tell("leave")
        assert running.wait() == 0
    nothing_left(namespace)
