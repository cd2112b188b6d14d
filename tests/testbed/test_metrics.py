"""What a session in a cluster tells Cloud Monitoring, from the agent on the user's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared_pathways_service.testing.testbed import Namespace
from tests.agent.monitoring import PROJECT, google_user, monitoring_at_hand
from tests.testbed.clients import client, deployed, nothing_left

MEASURED = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, collect_service_metrics=True) as held:
    say("serves", name=held.proxy_job_name)
    wait_for("leave")
say("left", trouble=[event.reason for event in heard if event.kind == "metrics.unavailable"])
"""
DEADLINE_S = 120.0
#: Of one slice.
CHIPS = 4


def test_a_session_in_a_cluster_is_told_of_until_it_has_ended(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> None:
    deployed(namespace)
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
