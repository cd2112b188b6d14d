"""Runs that proxies enter, the report to the resource manager, and events."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.api.validation import check_text
from shared_pathways_service.events.proxy import ExecutorSlow, ExecutorSlowEnded, ProxyReport
from shared_pathways_service.protocol import executors_pb2
from shared_pathways_service.protocol import proxy_status_pb2 as pb
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.proxy.executors.executor_times import ExecutorTimes, digest_of
from shared_pathways_service.servers.proxy.executors.run_comparison import ExecutorId, SlowLimits

KIND = "tpuv6e:2x4"
DIGEST = b"digest"
MS = 1_000_000


class Proxy:
    """Executors of a slice, with the events about them."""

    def __init__(self, hosts: int, kinds: tuple[str, ...] = ()) -> None:
        self.events: list[ProxyReport] = []
        self.times = ExecutorTimes(SlowLimits(ratio=2, runs=3), clock=lambda: 0.0)
        self.times.on_change = self.events.append
        self.links: list[Any] = [object() for _ in range(hosts)]
        for host, link in enumerate(self.links):
            kind = kinds[host] if kinds else KIND
            self.times.add(link, ExecutorId("slice-7", 1, 5, host), kind)

    def run(self, *ms: float, devices: tuple[int, ...] = ()) -> None:
        links = self.links[: len(ms)]
        counts = dict(zip(links, devices or [4] * len(ms), strict=True))
        self.times.ran("jit_f", DIGEST, counts, [int(one * MS) for one in ms])

    def message(self) -> pb.ExecutorTimes:
        """The report after all runs."""
        self.times.close()
        return self.times.message()


def test_a_verdict_is_an_event_that_names_the_host() -> None:
    proxy = Proxy(2)
    for _ in range(3):
        proxy.run(10, 40)
    for _ in range(3):
        proxy.run(10, 10)
    proxy.times.close()
    where: dict[str, Any] = {
        "slice": "slice-7",
        "virtual_index": 1,
        "slice_id": "slice-7",
        "generation": 5,
        "host": 1,
    }
    reasons = [
        "jit_f takes 4 times as long as on its peers: 40 ms instead of 10 ms",
        "jit_f takes about as long as on its peers again",
    ]
    [slow, ended] = [f"host 1 of slice-7: {reason}" for reason in reasons]
    assert proxy.events == [
        ExecutorSlow(reason=slow, program="jit_f", ratio=4.0, **where),
        ExecutorSlowEnded(reason=ended, **where),
    ]


def test_the_report_names_each_program_once() -> None:
    proxy = Proxy(2)
    for _ in range(6):
        proxy.run(10, 40)
    message = proxy.message()
    assert list(message.programs) == ["jit_f"]
    [first, second] = message.executors
    assert (first.generation, first.host_index, first.is_slow, first.ratio) == (5, 0, False, 0.25)
    assert (second.host_index, second.is_slow, second.ratio) == (1, True, 4)
    [program] = second.programs
    assert (program.program, program.calls, program.is_slow) == (0, 6, True)
    assert program.median_s == program.p90_s == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("kinds", "devices"),
    [((KIND, "tpuv6e:2x2"), (4, 4)), ((KIND, KIND), (4, 2))],
    ids=["another type", "other numbers of devices"],
)
def test_hosts_with_other_inputs_are_not_compared(
    kinds: tuple[str, ...], devices: tuple[int, ...]
) -> None:
    proxy = Proxy(2, kinds)
    for _ in range(9):
        proxy.run(10, 40, devices=devices)
    proxy.times.close()
    assert not proxy.events
    assert not any(one.HasField("ratio") for one in proxy.message().executors)


def test_an_executor_alone_has_no_times_and_a_removed_one_is_forgotten() -> None:
    proxy = Proxy(2)
    for _ in range(3):
        proxy.run(10, 40)
    proxy.times.remove([proxy.links[1]])
    proxy.times.remove([proxy.links[1]])
    proxy.times.close()
    assert [event.kind for event in proxy.events] == ["executor.slow", "executor.slow_ended"]
    assert [one.host_index for one in proxy.message().executors] == [0]
    alone = Proxy(1)
    alone.run(10)
    assert not alone.message().executors


def test_a_report_of_many_executors_is_bounded() -> None:
    proxy = Proxy(1000)
    for number in range(20):
        digest = bytes([number])
        counts = dict.fromkeys(proxy.links, 4)
        proxy.times.ran(f"jit_{number}", digest, counts, [10 * MS] * len(counts))
    message = proxy.message()
    assert len(message.executors) == 1000
    assert {len(one.programs) for one in message.executors} == {2}
    assert message.ByteSize() < 200_000


def test_a_long_name_is_cut_so_that_the_manager_accepts_the_reason() -> None:
    proxy = Proxy(2)
    for _ in range(3):
        proxy.times.ran(f"jit_{'f' * 200}\n", DIGEST, dict.fromkeys(proxy.links, 4), [MS, 90 * MS])
    proxy.times.close()
    [event] = proxy.events
    assert isinstance(event, ExecutorSlow)
    assert event.program == f"jit_{'f' * 96}"
    reason = event.reason or ""
    check_text("reason", reason)
    assert reason.endswith("90 ms instead of 1 ms")


def test_runs_wait_for_no_comparison_and_no_report() -> None:
    proxy, reporting, may_go_on = Proxy(2), threading.Event(), threading.Event()

    def report(event: ProxyReport) -> None:
        reporting.set()
        assert may_go_on.wait(DEADLINE_S)
        proxy.events.append(event)

    proxy.times.on_change = report
    for _ in range(3):
        proxy.run(10, 40)
    assert reporting.wait(DEADLINE_S)
    for _ in range(3):
        proxy.run(10, 10)
    assert not proxy.events
    may_go_on.set()
    proxy.times.close()
    assert [event.kind for event in proxy.events] == ["executor.slow", "executor.slow_ended"]


def test_an_error_of_the_comparison_is_logged_and_ends_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    proxy = Proxy(2)
    proxy.times.ran("jit_f", DIGEST, dict.fromkeys(proxy.links, 4), [MS])  # one time is missing
    for _ in range(3):
        proxy.run(10, 40)
    proxy.times.close()
    assert [event.kind for event in proxy.events] == ["executor.slow"]
    assert "The times of a program on executors are dropped: ValueError" in capfd.readouterr().err


def test_an_executor_that_reports_no_times_is_no_peer() -> None:
    proxy = Proxy(2)
    for _ in range(9):
        proxy.run(0, 40)
    [found] = proxy.message().executors
    assert (found.host_index, found.is_slow, found.HasField("ratio")) == (1, False, False)
    assert not proxy.events


def test_a_digest_has_options_and_no_devices() -> None:
    def digest(text: bytes, device: int, *, spmd: bool) -> bytes:
        options = xla_pb2.CompileOptionsProto()
        build = options.executable_build_options
        build.device_ordinal = device
        build.use_spmd_partitioning = spmd
        build.device_assignment.computation_devices.add(replica_device_ids=[device])
        body = executors_pb2.CompileProgram(text=text, options=options.SerializeToString())
        return digest_of(body)

    known = digest(b"a", 0, spmd=False)
    assert digest(b"a", 1, spmd=False) == known
    assert digest(b"a", 0, spmd=True) != known
    assert digest(b"b", 0, spmd=False) != known
