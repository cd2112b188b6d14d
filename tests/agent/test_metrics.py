"""Metrics of sessions in Cloud Monitoring, and every failure of it."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api import label_pb2, metric_pb2

from shared_pathways_service.agent.cloud_monitoring import ENDPOINT_VARIABLE
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.agent.metrics_sender import MetricsReporter
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.session.cloud_metrics import LABELS, METRICS, PREFIX, Meter
from shared_pathways_service.session.messages import Phase, SliceView, Snapshot
from shared_pathways_service.testing.google_monitoring import WrittenPoint
from tests.agent.monitoring import (
    DEADLINE_S,
    LEVELS,
    PROJECT,
    UNAVAILABLE,
    MakeMonitoring,
)
from tests.agent.support import Bench

SPACING_S = 0.3


def snapshot(phase: Phase, state: str = "unplaced") -> Snapshot:
    view = SliceView(index=0, instance_type="tpuv6e:2x2", state=state)
    return Snapshot(name="p", phase=phase, slices=(view,), placed=state == "placed")


BEGUN = [snapshot(Phase.PREFLIGHT), snapshot(Phase.CREATE), snapshot(Phase.START)]
SERVING = snapshot(Phase.SERVE, "placed")
ENDED = [snapshot(Phase.DELETE, "placed"), snapshot(Phase.CLOSED)]


def report(
    start: Start,
    until: Callable[[MetricsReporter, list[Mapping[str, Any]]], bool],
    *,
    linger_s: float = DEADLINE_S,
) -> list[Mapping[str, Any]]:
    """Reports a session that serves until something is so; returns what the client was told."""
    told: list[Mapping[str, Any]] = []

    async def work() -> None:
        meter = Meter(spacing_s=SPACING_S, repeat_s=1.0, linger_s=linger_s)
        reporter = MetricsReporter(start, told.append, meter=meter)
        async with asyncio.timeout(DEADLINE_S), reporter:
            for state in [*BEGUN, SERVING]:
                reporter.observe(state)
                await asyncio.sleep(0)
            while not until(reporter, told):
                await asyncio.sleep(0.01)
            for state in ENDED:
                reporter.observe(state)
        assert not reporter.is_behind

    asyncio.run(work())
    # gRPC's thread ends with the last channel, which an error's traceback may hold.
    gc.collect()
    return told


def reasons(told: Sequence[Mapping[str, Any]]) -> list[str]:
    assert {message["event"]["kind"] for message in told} <= {UNAVAILABLE}
    return [message["event"]["reason"] for message in told]


def by_metric(points: Sequence[WrittenPoint]) -> dict[str, list[WrittenPoint]]:
    found: dict[str, list[WrittenPoint]] = {}
    for point in points:
        found.setdefault(point.metric.removeprefix(PREFIX), []).append(point)
    return found


def test_a_session_is_reported_with_upstreams_metrics(
    bench: Bench, monitoring: MakeMonitoring
) -> None:
    fake = monitoring(spacing_s=SPACING_S * 0.9)
    start = bench.start()
    told = report(start, lambda *_: len(fake.values("capacity_in_use")) >= 2)
    assert told == []
    assert fake.calls[:7] == ["ListMetricDescriptors", *["CreateMetricDescriptor"] * 6]
    assert set(fake.calls[7:]) == {"CreateTimeSeries"}
    written = by_metric(fake.points)
    assert written.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        points = written[metric.name]
        assert {point.value_type for point in points} == {metric.value_type}
        assert all(b.at - a.at >= SPACING_S * 0.9 for a, b in itertools.pairwise(points))
        assert (points[-1].value == 0) == metric.is_level
    assert [point.value for point in written["num_successful_reqs"]] == [1]
    assert len(written["assignment_time"]) == 1
    assert {point.value for point in written["capacity_in_use"]} == {0, 4}
    assert {point.value for point in written["requested_capacity"]} == {0, 4}
    assert {point.value for point in written["num_active_users"]} == {0, 1}
    assert {point.value for point in written["num_users_waiting"]} <= {0, 1}
    for point in fake.points:
        assert (point.project, point.resource) == (PROJECT, "global")
        assert point.labels == {
            "client_instance_id": start.session,
            "cluster_name": "fake",
            "job_name": start.request.name,
        }


def test_metrics_are_described_once(bench: Bench, monitoring: MakeMonitoring) -> None:
    fake = monitoring(spacing_s=0.0)
    for _ in range(2):
        report(bench.start(), lambda *_: bool(fake.values("capacity_in_use")))
    assert fake.calls.count("ListMetricDescriptors") == 2
    assert fake.calls.count("CreateMetricDescriptor") == len(METRICS)
    assert fake.descriptors.keys() == {PREFIX + metric.name for metric in METRICS}
    kinds, types = metric_pb2.MetricDescriptor.MetricKind, metric_pb2.MetricDescriptor.ValueType
    for metric in METRICS:
        made = fake.descriptors[PREFIX + metric.name]
        assert kinds.Name(made.metric_kind) == "GAUGE"
        assert types.Name(made.value_type) == metric.value_type
        assert (made.unit, made.description) == (metric.unit, metric.description)
        assert made.display_name == metric.display_name
        assert {label.key: label.description for label in made.labels} == LABELS
        assert {label.value_type for label in made.labels} == {
            label_pb2.LabelDescriptor.ValueType.STRING
        }


def test_permission_to_write_is_enough(bench: Bench, monitoring: MakeMonitoring) -> None:
    def fail(method: str) -> grpc.StatusCode | None:
        return grpc.StatusCode.PERMISSION_DENIED if "Descriptor" in method else None

    fake = monitoring(spacing_s=0.0, fail=fail)
    assert report(bench.start(), lambda *_: bool(fake.values("capacity_in_use"))) == []
    assert fake.values("capacity_in_use")[-1] == 0


#: Of a program with api_client=, and a kubeconfig whose current context is another cluster.
HANDED_OVER = {"cluster": "", "project": "", "context": "", "server": "https://api.test"}
TWO_CONTEXTS = f"""
current-context: other
contexts:
- {{name: other, context: {{cluster: other}}}}
- {{name: gke_{PROJECT}_r_f, context: {{cluster: f}}}}
clusters:
- {{name: other, cluster: {{server: "https://other.test"}}}}
- {{name: f, cluster: {{server: "https://api.test/"}}}}
"""


@pytest.mark.parametrize(
    ("options", "kubeconfig", "place"),
    [
        ({"cluster": "c", "project": PROJECT, "context": ""}, "", "c"),
        ({"cluster": "", "project": "", "context": f"gke_{PROJECT}_r_d"}, "", "d"),
        ({"cluster": "", "project": "", "context": ""}, f"current-context: gke_{PROJECT}_r_e", "e"),
        ({"cluster": "", "project": "", "context": ""}, "current-context: kind", "kind"),
        ({"cluster": "", "project": "", "context": ""}, "not: [a kubeconfig", ""),
        (HANDED_OVER, TWO_CONTEXTS, "f"),
        (HANDED_OVER, "current-context: kind", ""),
    ],
)
def test_the_cluster_is_named(
    bench: Bench,
    monitoring: MakeMonitoring,
    monkeypatch: pytest.MonkeyPatch,
    options: Mapping[str, str],
    kubeconfig: str,
    place: str,
) -> None:
    path = bench.root / "kubeconfig"
    path.write_text(kubeconfig)
    monkeypatch.setenv("KUBECONFIG", str(path))
    fake = monitoring(spacing_s=0.0)
    home = HomeChoice(name="kubernetes", options=options)
    start = dataclasses.replace(bench.start(), home=home)
    report(start, lambda *_: bool(fake.points))
    assert {point.labels["cluster_name"] for point in fake.points} == {place}


# ---- what may be wrong: one complaint, and a session that is none the worse


def complained(_reporter: MetricsReporter, told: Sequence[Mapping[str, Any]]) -> bool:
    return bool(told)


def test_without_the_extra(
    bench: Bench, monitoring: MakeMonitoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = monitoring()
    monkeypatch.setitem(sys.modules, "google.cloud.monitoring_v3", None)
    [reason] = reasons(report(bench.start(), complained))
    assert "pip install 'shared-pathways-service[metrics]'" in reason
    assert fake.calls == []


def test_without_credentials(
    bench: Bench, monitoring: MakeMonitoring, credentials: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = monitoring()
    credentials.unlink()
    [reason] = reasons(report(bench.start(), complained))
    assert "gcloud auth application-default login" in reason
    assert fake.calls == []
    warnings = [r for r in caplog.records if r.name.startswith("shared_pathways_service")]
    assert len(warnings) == 1
    assert reason in warnings[0].getMessage()


def test_without_a_project(bench: Bench, monitoring: MakeMonitoring, credentials: Path) -> None:
    fake = monitoring()
    document = json.loads(credentials.read_text())
    del document["project_id"]
    credentials.write_text(json.dumps(document))
    [reason] = reasons(report(bench.start(), complained))
    assert "GOOGLE_CLOUD_PROJECT" in reason
    assert fake.calls == []


def test_an_unknown_project(bench: Bench, monitoring: MakeMonitoring) -> None:
    monitoring()
    home = HomeChoice(name="kubernetes", options={"cluster": "c", "project": "other-project"})
    start = dataclasses.replace(bench.start(), home=home)
    [reason] = reasons(report(start, complained))
    assert "other-project" in reason
    assert "NOT_FOUND" in reason


def test_without_permission_nothing_more_is_tried(bench: Bench, monitoring: MakeMonitoring) -> None:
    fake = monitoring(fail=lambda _method: grpc.StatusCode.PERMISSION_DENIED)
    [reason] = reasons(report(bench.start(), complained))
    assert "PERMISSION_DENIED" in reason
    assert fake.calls == ["ListMetricDescriptors", "CreateTimeSeries"]


def test_without_a_network_the_end_is_not_delayed(
    bench: Bench, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv(ENDPOINT_VARIABLE, f"http://127.0.0.1:{closed.getsockname()[1]}/")
        [reason] = reasons(report(bench.start(), complained, linger_s=0.5))
    assert "UNAVAILABLE" in reason


def test_a_silent_service_delays_nothing(bench: Bench, monitoring: MakeMonitoring) -> None:
    answers = threading.Event()

    def hang(_method: str) -> None:
        answers.wait(DEADLINE_S)

    fake = monitoring(fail=hang)
    try:
        assert report(bench.start(), lambda *_: bool(fake.calls), linger_s=0.5) == []
    finally:
        answers.set()


def test_an_exhausted_quota_is_awaited(bench: Bench, monitoring: MakeMonitoring) -> None:
    statuses = iter([grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])

    def fail(method: str) -> grpc.StatusCode | None:
        return next(statuses, None) if method == "CreateTimeSeries" else None

    fake = monitoring(spacing_s=0.0, fail=fail)
    [reason] = reasons(report(bench.start(), lambda *_: bool(fake.points)))
    assert "RESOURCE_EXHAUSTED" in reason
    # Nothing that happened is lost by it.
    assert fake.values("num_successful_reqs") == [1]
    assert len(fake.values("assignment_time")) == 1
    assert {name: fake.values(name)[-1] for name in LEVELS} == dict.fromkeys(LEVELS, 0)


def test_refused_points_are_dropped(bench: Bench, monitoring: MakeMonitoring) -> None:
    # Too strict a service: the second point of a series comes too early for it.
    fake = monitoring(spacing_s=DEADLINE_S)
    [reason] = reasons(report(bench.start(), complained))
    assert "more frequently than the maximum sampling" in reason
    assert fake.values("num_successful_reqs") == [1]


def test_unexpected_errors_are_reported(
    bench: Bench, monitoring: MakeMonitoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitoring()
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://[not-an-address")
    [reason] = reasons(report(bench.start(), complained))
    assert reason.startswith("ValueError")
