"""Executors from their grant to its end: a real resource manager, real sessions of workers.

Executors are stand-ins, and a worker is its session with the manager, in this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.embedded import eventually
from harness.openmetrics import scrape, value
from harness.processes import DEADLINE_S, VERSIONS, Service, Stream, worker_hello
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.worker.manager_session import Session
from shared_pathways_service.servers.xla.platforms import no_gpu
from tests.servers.conftest import MakeService
from tests.servers.standing_in import StandIn

_PAIR = "tpuv6e:2x4"  # two hosts


class Worker:
    """The worker of one host, and the executors that it has started."""

    def __init__(self, service: Service, root: Path, slice_id: str, host: int) -> None:
        directory = root / slice_id
        directory.mkdir(exist_ok=True)
        self.executors = StandIn(directory, host)
        self.refused = threading.Event()
        hello = pb.WorkerHello(
            versions=VERSIONS,
            slice_id=slice_id,
            instance_type=_PAIR,
            host_index=host,
            host_count=2,
            incarnation=f"{slice_id}-{host}-{id(self)}",
            pid=os.getpid(),
            runs_executors=True,
        )
        self.session = Session(
            service.address,
            hello,
            None,
            beat_interval_s=1.0,
            executor_command=self.executors.command,
            executor_host="127.0.0.1",
            on_welcome=lambda: None,
            on_refused=self.refused.set,
        )

    @property
    def running(self) -> list[int]:
        """The executors that run."""
        pids = [found["pid"] for found in self.executors.started]
        return [pid for pid in pids if psutil.pid_exists(pid)]


class Hosts:
    """The workers of slices of two hosts each."""

    def __init__(self, service: Service, root: Path, *slice_ids: str) -> None:
        self._service = service
        self._stack = contextlib.ExitStack()
        self.workers = {
            (slice_id, host): Worker(service, root, slice_id, host)
            for slice_id in slice_ids
            for host in (0, 1)
        }
        for worker in self.workers.values():
            self._stack.callback(worker.session.close)

    def close(self) -> None:
        self._stack.close()

    def on(self, slice_id: str) -> list[Worker]:
        return [self.workers[slice_id, host] for host in (0, 1)]

    def none_runs(self, slice_id: str) -> bool:
        return not any(worker.running for worker in self.on(slice_id))


@pytest.fixture
def distributed(
    make_service: MakeService, own_directories: Path
) -> Iterator[tuple[Service, Hosts]]:
    service = make_service(
        "--engine=distributed",
        "--metrics_port=0",
        "--num_spares=1",
        "--proxy_memory_limit_bytes=1000000",
        f"--record_events={own_directories / 'recorded'}",
        slices=_PAIR,
    )
    hosts = Hosts(service, own_directories, "slice-0", "slice-1")
    service.wait_for_states({"slice-0": "ready", "slice-1": "ready"})
    yield service, hosts
    hosts.close()


def placed(tenant: Stream) -> tuple[str, int]:
    while (found := tenant.expect("placement")).state != pb.Placement.PLACED:
        pass
    return found.slice_id, found.generation


def check_told(told: pb.PlacementExecutors, hosts: list[Worker], generation: int) -> None:
    """What a proxy is told is what the last executor of each host was started with."""
    assert (told.virtual_index, told.generation) == (0, generation)
    assert [one.host_index for one in told.executors] == [0, 1]
    for one, worker in zip(told.executors, hosts, strict=True):
        started = worker.executors.started[-1]
        assert one.token == started["token"]
        assert one.address == f"127.0.0.1:{40_000 + started['pid'] % 10_000}"
        assert worker.running == [started["pid"]]


def test_executors_come_and_go_with_the_grants_of_their_slices(
    distributed: tuple[Service, Hosts], own_directories: Path
) -> None:
    service, hosts = distributed
    assert hosts.none_runs("slice-0")
    tenant = service.tenant("ada", virtual_slices=[_PAIR])
    assert placed(tenant) == ("slice-0", 1)
    first = hosts.on("slice-0")
    check_told(tenant.expect("executors"), first, 1)
    shown = [worker.executor for one in service.status().slices for worker in one.workers]
    assert [(one.state, one.generation, one.pid) for one in shown] == [
        *[("serving", 1, worker.running[0]) for worker in first],
        *[("", 0, 0)] * 2,
    ]
    started = first[0].executors.started[0]
    # That of the devices' arrays, and of the executor itself.
    assert (int(started["memory_limit"]), started["devices"]) == (4_000_000 + (8 << 30), "4")
    assert hosts.none_runs("slice-1")

    # One of them dies: another slice takes the place of this one, with executors on all its hosts.
    os.kill(first[1].running[0], signal.SIGKILL)
    lost = tenant.expect("placement")
    assert (lost.state, lost.generation) == (pb.Placement.UNPLACED, 1)
    cause = "the executor of host 1 of slice-0 was killed by signal 9 (out of memory?)"
    assert lost.reason == cause
    assert placed(tenant) == ("slice-1", 2)
    second = hosts.on("slice-1")
    check_told(tenant.expect("executors"), second, 2)
    eventually(lambda: hosts.none_runs("slice-0"), "the other executor of the lost slice to end")
    told = scrape(service.metrics_url())
    assert value(told, "sps_rm_executor_start_seconds_count") == 2
    assert value(told, "sps_rm_executor_losses_total", cause="signal") == 1
    assert value(told, "sps_rm_executor_losses_total", cause="ended_cleanly") == 0
    assert value(told, "sps_rm_executors", state="serving") == 2
    assert value(told, "sps_rm_executors", state="starting") == 0
    assert [len(worker.executors.started) for worker in (*first, *second)] == [1, 1, 1, 1]

    # The manager dies: they live on, and the next manager tells the proxy of them.
    before = [worker.running for worker in second]
    service.rm.kill()
    service.start_rm()
    claim = pb.Claim(virtual_index=0, slice_id="slice-1", generation=2)
    tenant = service.tenant("ada", virtual_slices=[_PAIR], running=True, claims=[claim])
    check_told(tenant.expect("executors"), second, 2)
    assert [worker.running for worker in second] == before

    # A host dies: a spare takes the place of its whole slice, and the executors of the rest end.
    second[1].session.close()
    assert placed(tenant) == ("slice-0", 3)
    check_told(tenant.expect("executors"), first, 3)
    eventually(lambda: hosts.none_runs("slice-1"), "the executors of the lost slice to end")

    tenant.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
    eventually(lambda: hosts.none_runs("slice-0"), "the executors to end with their grant")
    said = (own_directories / "recorded").read_text() + "\n".join(service.rm.lines)
    tokens = [one["token"] for w in hosts.workers.values() for one in w.executors.started]
    assert len(tokens) == len(set(tokens)) == 6
    assert not [token for token in tokens if token in said], "a token is written down"


def test_a_holder_whose_proxy_cannot_reach_an_executor_gets_another_slice(
    distributed: tuple[Service, Hosts],
) -> None:
    service, hosts = distributed
    tenant = service.tenant("ada", virtual_slices=[_PAIR])
    assert tenant.expect("welcome").takes_losses
    assert placed(tenant) == ("slice-0", 1)
    check_told(tenant.expect("executors"), hosts.on("slice-0"), 1)
    # A stopped process answers no ping; its worker kills it.
    os.kill(hosts.workers["slice-0", 1].running[0], signal.SIGSTOP)
    lost = pb.PlacementLost(virtual_index=0, generation=1, host_index=1, reason="no answer")
    tenant.send(pb.TenantMessage(lost=lost))
    gone = tenant.expect("placement")
    assert (gone.state, gone.generation) == (pb.Placement.UNPLACED, 1)
    assert gone.reason == "ada cannot reach the executor on host 1 of slice-0: no answer"
    assert placed(tenant) == ("slice-1", 2)
    check_told(tenant.expect("executors"), hosts.on("slice-1"), 2)
    eventually(lambda: hosts.none_runs("slice-0"), "the executors of the lost slice to end")
    [recorded] = [
        event
        for page in service.stub.GetHistory(pb.GetHistoryRequest(kinds=["slice.unplaced"]))
        for event in page.events
    ]
    assert (recorded.tenant, recorded.slice, recorded.reason) == ("ada", "slice-0", gone.reason)

    # Of the placement before: nothing happens to that of now.
    tenant.send(pb.TenantMessage(lost=lost))
    lost.virtual_index = 1
    tenant.send(pb.TenantMessage(lost=lost))
    assert tenant.next() is None
    assert "lost.virtual_index" in tenant.status()[1]
    check = service.tenant("ada", virtual_slices=[_PAIR], running=True)
    assert placed(check) == ("slice-1", 2)


def test_a_manager_without_executors_takes_no_report_of_them(make_service: MakeService) -> None:
    service = make_service()
    tenant = service.tenant("ada")
    assert not tenant.expect("welcome").takes_losses
    tenant.send(pb.TenantMessage(lost=pb.PlacementLost(generation=1)))
    while tenant.next() is not None:
        pass
    assert "message" in tenant.status()[1]


_NO_GPU = str(no_gpu("libcuda.so.1: cannot open shared object file: No such file or directory"))


@pytest.mark.parametrize("said", ["no GPU", _NO_GPU], ids=["short", "long"])
def test_a_host_whose_executors_do_not_serve_ends(
    distributed: tuple[Service, Hosts], said: str
) -> None:
    service, hosts = distributed
    broken: Any = hosts.workers["slice-0", 1]
    broken.executors.mode = f"end:E1127 03:00:00.000001 7 b.py:2] {said}"
    tenant = service.tenant("ada", virtual_slices=[_PAIR])
    assert placed(tenant) == ("slice-0", 1)
    assert broken.refused.wait(DEADLINE_S)
    reason = f"the executor ended with exit code 7 before it served; its last line: {said}"
    assert str(broken.session.error) == reason
    broken.session.close()
    # The tenant learns of it as well, in the 256 characters of a reason.
    lost = tenant.expect("placement")
    assert (lost.state, lost.slice_id) == (pb.Placement.UNPLACED, "slice-0")
    assert lost.reason.endswith(f"is gone: {reason[:256]}")
    assert placed(tenant) == ("slice-1", 2)
    check_told(tenant.expect("executors"), hosts.on("slice-1"), 2)


def test_a_worker_that_cannot_run_executors_is_refused(make_service: MakeService) -> None:
    service = make_service("--engine=distributed")
    stream = service.stream(service.stub.WorkerSession)
    stream.send(pb.WorkerMessage(hello=worker_hello(runs_executors=False)))
    assert stream.next() is None
    assert "runs_executors" in stream.status()[1]


def _executor(status: pb.GetStatusResponse) -> pb.ExecutorStatus:
    return status.slices[0].workers[0].executor


# (A forked executor may not have used any time that counts.)
@pytest.mark.real_starts
def test_workers_report_what_executors_use_with_their_heartbeats(
    distributed: tuple[Service, Hosts],
) -> None:
    service, hosts = distributed
    tenant = service.tenant("ada", virtual_slices=[_PAIR])
    tenant.expect("executors")
    for status in service.statuses():
        shown = [one.executor for one in status.slices[0].workers]
        if all(one.HasField("usage") for one in shown):
            break
    for one in shown:
        assert one.usage.generation == one.generation == 1
        assert one.usage.resident_bytes > 0
        assert one.usage.cpu_seconds > 0
        assert one.usage.memory_limit_bytes == 4_000_000 + (8 << 30)
    served = scrape(service.metrics_url())["sps_rm_executor_resident_bytes"].samples
    assert [one.labels for one in served] == [
        {"connection": "ada", "slice": "slice-0", "host": host} for host in ("0", "1")
    ]
    tenant.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
    eventually(lambda: hosts.none_runs("slice-0"), "the executors to end with their grant")
    assert not scrape(service.metrics_url())["sps_rm_executor_resident_bytes"].samples


def test_usage_is_that_of_the_executor_of_now_and_an_older_worker_reports_none(
    make_service: MakeService,
) -> None:
    service = make_service("--engine=distributed", "--metrics_port=0")
    worker = service.stream(service.stub.WorkerSession)
    worker.send(pb.WorkerMessage(hello=worker_hello()))
    service.wait_for_states({"slice-0": "ready"})
    tenant = service.tenant("ada")
    assert placed(tenant) == ("slice-0", 1)
    serving = pb.WorkerExecutor(generation=1, address="127.0.0.1:1", token="t", pid=7)
    worker.send(pb.WorkerMessage(executor=serving))
    tenant.expect("executors")
    # An older worker's heartbeat, and what an executor of another generation uses.
    worker.send(pb.WorkerMessage(beat=pb.WorkerBeat(sequence=1)))
    worker.send(_beat(2, generation=2, resident_bytes=9))
    worker.send(pb.WorkerMessage(executor=serving))
    tenant.expect("executors")
    found = _executor(service.status())
    assert (found.state, found.pid, found.HasField("usage")) == ("serving", 7, False)
    assert not scrape(service.metrics_url())["sps_rm_executor_cpu_seconds"].samples

    worker.send(_beat(3, resident_bytes=5 << 20))
    eventually(lambda: _executor(service.status()).HasField("usage"), "the usage to be shown")
    # A report that it serves has a newer one.
    serving.usage.CopyFrom(_usage(resident_bytes=6 << 20, cpu_seconds=1.5, cpu_percent=150))
    worker.send(pb.WorkerMessage(executor=serving))
    tenant.expect("executors")
    usage = _executor(service.status()).usage
    assert (usage.resident_bytes, usage.cpu_seconds, usage.cpu_percent) == (6 << 20, 1.5, 150)

    worker.send(_beat(4, cpu_seconds=float("nan")))
    while worker.next() is not None:
        pass
    assert "usage.cpu_seconds" in worker.status()[1]


def _usage(**fields: Any) -> pb.ExecutorUsage:
    return pb.ExecutorUsage(**{"generation": 1, **fields})


def _beat(sequence: int, **usage: Any) -> pb.WorkerMessage:
    return pb.WorkerMessage(beat=pb.WorkerBeat(sequence=sequence, usage=_usage(**usage)))
