"""What a scraper reads of the resource manager."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from harness.openmetrics import check_documented, scrape, value
from harness.processes import KIND, ServerProcess, worker_hello
from harness.promql import check_queries
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.proxy_status_pb2 import (
    ExecutorTime,
    ExecutorTimes,
    GetCountersResponse,
)
from tests.servers.conftest import MakeService


def test_state_and_counters_are_exposed(make_service: MakeService) -> None:
    service = make_service("--metrics_port=0")
    service.start_ready_workers("slice-0", "slice-1")
    service.tenant("ada").expect("running")
    service.tenant("bob", virtual_slices=[KIND] * 2, queue_timeout_s=600).expect("queued")
    told = scrape(service.metrics_url())
    assert value(told, "sps_rm_slices", instance_type=KIND, state="ready") == 2
    assert value(told, "sps_rm_slices", state="lost") == 0
    assert value(told, "sps_rm_slices_held") == 1
    assert value(told, "sps_rm_slices_wanted") == 2
    assert value(told, "sps_rm_tenants", state="running") == 1
    assert value(told, "sps_rm_tenants", state="waiting") == 1
    assert value(told, "sps_rm_queue_length") == 1
    assert value(told, "sps_rm_queue_oldest_wait_seconds") > 0
    assert value(told, "sps_rm_streams", of="worker") == 2
    assert value(told, "sps_rm_streams", of="tenant") == 2
    assert value(told, "sps_rm_events_total", event="TenantAsked") == 2
    assert value(told, "sps_rm_decisions_total", kind="slice.placed") == 1
    assert value(told, "sps_rm_decisions_total", kind="tenant.queued") == 1
    # (There before the first one, which is an increase then.)
    for kind in ("slice.lost", "tenant.preempted", "proxy.memory_near_limit", "other"):
        assert value(told, "sps_rm_decisions_total", kind=kind) == 0
    assert value(told, "sps_rm_event_handling_seconds_count") >= 4
    assert value(told, "sps_rm_event_handling_seconds_bucket", le="+Inf") >= 4
    assert value(told, "sps_rm_state_write_seconds_sum") > 0
    assert value(told, "sps_rm_history_decisions") >= 5
    # Nothing that is counted goes back.
    again = scrape(service.metrics_url())
    assert value(again, "sps_rm_events_total", event="TenantAsked") >= 2


def test_the_document_names_each_with_its_unit_and_dashboards_use_no_others(
    make_service: MakeService,
) -> None:
    service = make_service("--metrics_port=0", "--engine=distributed")
    worker = service.stream(service.stub.WorkerSession)
    worker.send(pb.WorkerMessage(hello=worker_hello()))
    service.wait_for_states({"slice-0": "ready"})
    tenant = service.tenant("ada")
    tenant.expect("placement")
    times = ExecutorTimes(executors=[ExecutorTime(generation=1, ratio=2.5, is_slow=True)])
    tenant.send(pb.TenantMessage(counters=GetCountersResponse(executor_times=times)))
    usage = pb.ExecutorUsage(
        generation=1, resident_bytes=2 << 20, memory_limit_bytes=8 << 30, cpu_seconds=1.5
    )
    worker.send(pb.WorkerMessage(beat=pb.WorkerBeat(sequence=1, usage=usage)))
    found = scrape(service.metrics_url())
    while not (
        found["sps_rm_executor_cpu_seconds"].samples and found["sps_rm_executor_slow"].samples
    ):
        found = scrape(service.metrics_url())
    labels = {"connection": "ada", "slice": "slice-0", "host": "0"}
    assert value(found, "sps_rm_executor_resident_bytes", **labels) == 2 << 20
    assert value(found, "sps_rm_executor_memory_limit_bytes", **labels) == 8 << 30
    assert value(found, "sps_rm_executor_cpu_seconds_total", **labels) == 1.5
    check_documented(found.values(), "sps_rm")
    check_queries(found.values(), "sps_rm")


def test_a_token_is_wanted_where_there_is_one(make_service: MakeService, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    service = make_service("--metrics_port=0", f"--token_file={path}")
    url = service.metrics_url()
    for wrong in (None, "other"):
        with pytest.raises(urllib.error.HTTPError, match="401") as raised:
            scrape(url, wrong)
        raised.value.close()
    assert "sps_rm_queue_length" in scrape(url, "s3cret")


def test_a_port_that_is_taken_is_named(make_service: MakeService) -> None:
    service = make_service("--metrics_port=0")
    taken = re.sub(r".*:(\d+)/metrics", r"\1", service.metrics_url())
    flags = ["--server_port=0", f"--instance_type={KIND}", "--instance_count=1"]
    flags.append(f"--metrics_port={taken}")
    with ServerProcess("shared_pathways_service.servers.resource_manager", flags) as second:
        assert second.wait() == 1
        second.wait_for_line(f"cannot serve metrics on 127.0.0.1:{taken}")
