"""Runs that proxies enter, the report to the resource manager, and events."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.events.proxy import ExecutorSlow, ExecutorSlowEnded, ProxyReport
from shared_pathways_service.servers.proxy.executors.executor_times import ExecutorTimes, digest_of
from shared_pathways_service.servers.proxy.executors.run_comparison import ExecutorId, SlowLimits

KIND = "tpuv6e:2x4"
DIGEST = digest_of(b"a program")
MS = 1_000_000


class Proxy:
    """Executors of a slice, with what is reported of them."""

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


def test_a_verdict_is_an_event_that_names_the_host() -> None:
    proxy = Proxy(2)
    for _ in range(3):
        proxy.run(10, 40)
    for _ in range(3):
        proxy.run(10, 10)
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
    message = proxy.times.message()
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
    assert not proxy.events
    assert not any(one.HasField("ratio") for one in proxy.times.message().executors)


def test_an_executor_alone_has_no_times_and_a_removed_one_is_forgotten() -> None:
    proxy = Proxy(2)
    for _ in range(3):
        proxy.run(10, 40)
    proxy.times.remove([proxy.links[1]])
    proxy.times.remove([proxy.links[1]])
    assert [event.kind for event in proxy.events] == ["executor.slow", "executor.slow_ended"]
    assert [one.host_index for one in proxy.times.message().executors] == [0]
    alone = Proxy(1)
    alone.run(10)
    assert not alone.times.message().executors


def test_a_report_of_many_executors_is_bounded() -> None:
    proxy = Proxy(1000)
    for number in range(20):
        digest = digest_of(bytes([number]))
        counts = dict.fromkeys(proxy.links, 4)
        proxy.times.ran(f"jit_{number}", digest, counts, [10 * MS] * len(counts))
    message = proxy.times.message()
    assert len(message.executors) == 1000
    assert {len(one.programs) for one in message.executors} == {2}
    assert message.ByteSize() < 200_000
