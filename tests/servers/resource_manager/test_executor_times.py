"""Times on executors, as proxies report them: checked, joined with executors, and served."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.openmetrics import scrape, value
from harness.processes import Service, Stream, worker_hello
from shared_pathways_service.events.proxy import ExecutorSlow
from shared_pathways_service.protocol import proxy_status_pb2 as status_pb
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_message, event_of
from shared_pathways_service.servers.resource_manager.reported_times import ExecutorTimes
from tests.servers.conftest import MakeService


def counters(*executors: status_pb.ExecutorTime, programs: Any = ("f",)) -> Any:
    times = status_pb.ExecutorTimes(programs=programs, executors=executors)
    return status_pb.GetCountersResponse(executor_times=times)


def slow(generation: int = 1, host: int = 0, ratio: float = 3.5) -> status_pb.ExecutorTime:
    return status_pb.ExecutorTime(
        generation=generation,
        host_index=host,
        is_slow=True,
        ratio=ratio,
        programs=[status_pb.ProgramTime(calls=7, median_s=0.07, p90_s=0.09, ratio=ratio)],
    )


def test_the_last_report_of_a_connected_proxy_is_kept() -> None:
    now = 100.0
    times = ExecutorTimes(lambda: now)
    old, new = object(), object()
    times.put("ada", old, counters(slow()))
    now = 107.0
    [message] = times.messages()
    assert (message.tenant, message.age_s, list(message.times.programs)) == ("ada", 7.0, ["f"])
    assert list(times.messages("bob")) == []
    # The proxy has connected again, and its old stream ends late.
    times.put("ada", new, counters(slow(generation=2)))
    times.forget("ada", old)
    assert times.find("ada", 1, 0) is None
    found = times.find("ada", 2, 0)
    assert found is not None
    assert found.is_slow
    # One without times, of a proxy whose executors have all ended.
    times.put("ada", new, status_pb.GetCountersResponse())
    assert times.find("ada", 2, 0) is None
    times.forget("ada", new)
    assert list(times.messages()) == []


def test_the_counters_are_kept_without_the_times() -> None:
    message = counters(slow())
    message.families.add(name="sps_proxy_x")
    ExecutorTimes().put("ada", object(), message)
    assert not message.HasField("executor_times")
    assert len(message.families) == 1


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
def test_what_is_not_valid_in_a_report_is_dropped(number: float) -> None:
    wrong = slow(ratio=number)
    wrong.programs.add(program=1, calls=1)  # it names no program
    wrong.programs.add(calls=8, median_s=0.5)
    times = ExecutorTimes()
    times.put("eve", object(), counters(wrong, programs=["f\n" + "x" * 500]))
    [message] = times.messages()
    [name] = message.times.programs
    assert name == "f " + "x" * 98
    [executor] = message.times.executors
    assert not executor.HasField("ratio")
    assert [one.calls for one in executor.programs] == [8]


def test_a_report_that_is_too_large_is_dropped() -> None:
    times = ExecutorTimes()
    times.put("eve", object(), counters(slow(), programs=["x" * 300_000]))
    [message] = times.messages()
    assert not message.times.executors


def test_a_status_marks_executors_of_the_tenant_that_reported_them() -> None:
    times = ExecutorTimes()
    times.put("ada", object(), counters(slow(), slow(generation=2)))
    executors = {
        ("ada", 1): True,
        ("ada", 3): False,  # a later placement
        ("bob", 2): False,  # another tenant's
    }
    status = pb.GetStatusResponse(
        slices=[
            pb.SliceStatus(
                tenant=tenant,
                workers=[
                    pb.WorkerStatus(executor=pb.ExecutorStatus(generation=generation)),
                    pb.WorkerStatus(host_index=1),
                ],
            )
            for tenant, generation in executors
        ]
    )
    times.mark(status)
    for found, is_slow in zip(status.slices, executors.values(), strict=True):
        executor = found.workers[0].executor
        assert (executor.slow, executor.HasField("time_ratio")) == (is_slow, is_slow)
        assert not found.workers[1].HasField("executor")


def _report(service: Service, tenant: Stream, message: status_pb.GetCountersResponse) -> None:
    """Reports times, and an event; the service has read both afterwards."""
    watch = service.watch("ada")
    tenant.send(pb.TenantMessage(counters=message))
    told = ExecutorSlow(reason="host 0 of slice-0: why", program="f", ratio=3.5, host=0)
    tenant.send(pb.TenantMessage(event=event_message(told)))
    while (received := watch.next()).kind != told.kind:
        pass
    event = event_of(received)
    assert isinstance(event, ExecutorSlow)
    assert (event.tenant, event.source, event.host) == ("ada", "proxy", 0)


def test_times_are_in_the_status_the_metrics_and_the_history(make_service: MakeService) -> None:
    service = make_service("--metrics_port=0", "--engine=distributed")
    worker = service.stream(service.stub.WorkerSession)
    worker.send(pb.WorkerMessage(hello=worker_hello()))
    service.wait_for_states({"slice-0": "ready"})
    tenant = service.tenant("ada")
    tenant.expect("placement")
    _report(service, tenant, counters(slow()))
    status = service.stub.GetStatus(pb.GetStatusRequest())
    assert status.runs_executors
    executor = status.slices[0].workers[0].executor
    assert (executor.slow, executor.time_ratio) == (True, 3.5)
    [message] = service.stub.GetExecutorTimes(pb.GetExecutorTimesRequest(tenant="ada"))
    assert message.times.executors[0].programs[0].calls == 7
    labels = {"connection": "ada", "slice": "slice-0", "host": "0"}
    found = scrape(service.metrics_url())
    assert value(found, "sps_rm_executor_time_ratio", **labels) == 3.5
    assert value(found, "sps_rm_executor_slow", **labels) == 1
    pages = service.stub.GetHistory(pb.GetHistoryRequest(kinds=["executor.slow"]))
    [recorded] = [event for page in pages for event in page.events]
    assert (recorded.tenant, recorded.reason) == ("ada", "host 0 of slice-0: why")
    tenant.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
    tenant.status()
    assert list(service.stub.GetExecutorTimes(pb.GetExecutorTimesRequest())) == []
    assert not scrape(service.metrics_url())["sps_rm_executor_slow"].samples


def test_the_engine_local_has_no_executors(make_service: MakeService) -> None:
    service = make_service()
    assert not service.stub.GetStatus(pb.GetStatusRequest()).runs_executors
