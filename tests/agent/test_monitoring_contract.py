"""What is relied on of Cloud Monitoring: the stand-in must do it as the real one does.

The real one is asked when SPS_MONITORING_PROJECT names a project in which the Application Default
Credentials may write metrics (roles/monitoring.editor). It keeps what is written for some weeks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from shared_pathways_service.agent.cloud_monitoring import (
    ENDPOINT_VARIABLE,
    CloudMonitoring,
    Refused,
    Unavailable,
)
from shared_pathways_service.session.cloud_metrics import LABELS, METRICS, Metric, Reading
from tests.agent.monitoring import PROJECT, google_user, monitoring_at_hand

[CAPACITY] = [metric for metric in METRICS if metric.name == "capacity_in_use"]
ALL = [Reading(metric=metric, value=1.0) for metric in METRICS]


@pytest.fixture(params=["fake", "real"])
def project(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> Iterator[str]:
    if request.param == "real":
        named = os.environ.get("SPS_MONITORING_PROJECT", "")
        if not named:
            pytest.skip("SPS_MONITORING_PROJECT names no project")
        monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)
        yield named
        return
    with google_user(monkeypatch, own_directories), monitoring_at_hand(monkeypatch) as use:
        use()
        yield PROJECT


def labels(**more: str) -> dict[str, str]:
    own = dict.fromkeys(LABELS, "contract-test")
    return {**own, "client_instance_id": uuid.uuid4().hex, **more}


def run(project: str, work: Callable[[CloudMonitoring], Awaitable[None]], **more: str) -> None:
    async def open_and_close() -> None:
        monitoring = CloudMonitoring(project=project, labels=labels(**more))
        try:
            await work(monitoring)
        finally:
            await monitoring.close()

    asyncio.run(open_and_close())
    # gRPC's thread ends with the last channel, which an error's traceback may hold.
    gc.collect()


def test_points_of_all_metrics_are_taken(project: str) -> None:
    run(project, lambda monitoring: monitoring.write(ALL, time.time()))


def test_zero_is_a_value(project: str) -> None:
    zeros = [Reading(metric=metric, value=0) for metric in METRICS]
    run(project, lambda monitoring: monitoring.write(zeros, time.time()))


def test_points_too_close_to_each_other_are_refused(project: str) -> None:
    async def work(monitoring: CloudMonitoring) -> None:
        now = time.time()
        await monitoring.write([Reading(metric=CAPACITY, value=4)], now)
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            await monitoring.write([Reading(metric=CAPACITY, value=8)], now + 1.0)

    run(project, work)


def test_labels_distinguish_series(project: str) -> None:
    for _ in range(2):
        run(project, lambda monitoring: monitoring.write(ALL, time.time()))


def test_a_value_of_another_type_is_refused(project: str) -> None:
    wrong = Metric(
        name=CAPACITY.name,
        description=CAPACITY.description,
        display_name=CAPACITY.display_name,
        value_type="DOUBLE",
        unit=CAPACITY.unit,
        is_level=True,
    )

    async def work(monitoring: CloudMonitoring) -> None:
        await monitoring.write([Reading(metric=CAPACITY, value=4)], time.time())
        with pytest.raises(Refused, match="alue type"):
            await monitoring.write([Reading(metric=wrong, value=4.0)], time.time())

    run(project, work)


def test_a_label_that_is_not_described_is_refused(project: str) -> None:
    async def work(monitoring: CloudMonitoring) -> None:
        with pytest.raises(Refused, match="label"):
            await monitoring.write(ALL, time.time())

    run(project, work, no_such_label="x")


def test_a_project_that_is_not_there_is_final(project: str) -> None:
    async def work(monitoring: CloudMonitoring) -> None:
        with pytest.raises(Unavailable):
            await monitoring.write(ALL, time.time())

    run("no-such-project-4711-of-anybody", work)
