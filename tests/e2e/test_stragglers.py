"""A slow host is found by the times of its programs, and stops being one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.deadlines import deadline, wait_until
from harness.processes import DEADLINE_S
from harness.programs import Program, program, service, sps, sps_failing, sps_json, status

pytestmark = pytest.mark.race

#: Computes on both hosts of a slice, whose parts do not wait for each other, and passes on what it
#: is told of executors.
COMPUTING = """
import threading

def told(event):
    if event.kind.startswith("executor.slow"):
        say(event.kind, event=event.to_dict())

with isc_pathways.connect(
    expected_tpu_instances={"tpuv6e:2x4": 1}, on_event=told
) as connection:
    import jax, jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    chips = NamedSharding(Mesh(jax.devices(), ("chip",)), P("chip"))
    x = jax.device_put(jnp.ones((8, 512, 512)), chips)

    def multiply(x):
        return jax.lax.fori_loop(0, 4, lambda _, y: y @ x / 512, x)

    multiply = jax.jit(multiply)
    jax.block_until_ready(multiply(x))
    say("holds", name=connection.proxy_job_name)
    ended = threading.Event()

    def compute():
        while not ended.is_set():
            jax.block_until_ready(multiply(x))

    computing = threading.Thread(target=compute)
    computing.start()
    wait_for("leave")
    ended.set()
    computing.join()
say("left")
"""


LONG_S = deadline(400.0)


@contextlib.contextmanager
def burdened(pid: int) -> Iterator[None]:
    """Has a process run for a small part of the time only."""
    ended = threading.Event()

    def pulse() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not ended.wait(0.01):
                os.kill(pid, signal.SIGSTOP)
                ended.wait(0.2)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(DEADLINE_S)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_SLOW_EXECUTOR_RATIO", "5")
    monkeypatch.setenv("SPS_SLOW_EXECUTOR_RUNS", "4")


def _expect(running: Program, kind: str, host: int, reason: str = "") -> dict[str, Any]:
    """The next event of a kind about a host; others are of a busy machine."""
    while True:
        # (Longer than the interval of events: those of a busy machine may delay it.)
        event: dict[str, Any] = running.expect_any(LONG_S).get("event", {})
        if event.get("kind") != kind or event["data"]["host"] != host:
            continue
        if event["reason"].endswith(reason):
            return event


def _slow_hosts() -> list[int]:
    return [one["host"] for one in status()["executors"] if one["slow"]]


def _ratios() -> list[float]:
    return [one["time_ratio"] or 1.0 for one in status()["executors"]]


@pytest.mark.usefixtures("limits")
def test_a_slow_host_is_reported_while_it_is_slow() -> None:
    with (
        service("tpuv6e:2x4=1", spares=0, arguments=("--engine", "distributed")),
        program(COMPUTING) as running,
    ):
        name = running.expect("holds")["name"]
        executors = status()["executors"]
        assert [one["host"] for one in executors] == [0, 1]
        with burdened(executors[1]["pid"]):
            wait_until("a slow host", lambda: _slow_hosts() == [1], 400.0)
            slow = _expect(running, "executor.slow", 1)
            assert (slow["source"], slow["tenant"]) == ("proxy", name)
            assert slow["data"]["slice_id"] == "slice-0"
            assert slow["data"]["program"] == "jit_multiply"
            assert slow["data"]["ratio"] > 5
            wait_until("the ratios", lambda: _ratios()[1] > 3 > 1 > _ratios()[0])
            [connection] = sps_json("stragglers", name)["connections"]
            assert connection["name"] == name
            assert [one["host"] for one in connection["hosts"]] == [1, 0]
            slowest = connection["hosts"][0]
            assert (slowest["slow"], slowest["slowest"]) == (True, True)
            assert slowest["programs"][0]["name"] == "jit_multiply"
            assert slowest["programs"][0]["ratio"] == slowest["time_ratio"] > 3
            rows = [one.split() for one in sps("stragglers").stdout.splitlines()[1:]]
            assert [row[0:2] for row in rows] == [[name, "slice-0"]] * 2
            assert "slow, slowest host" in " ".join(rows[0])
            [top] = [
                line
                for line in sps("top", "--once").stdout.splitlines()
                if line.strip().startswith("slice-0, host 1")
            ]
            assert top.rstrip().endswith("x slow")
        _expect(running, "executor.slow_ended", 1)
        wait_until("the status to follow", lambda: not _slow_hosts())
        shown = sps("events", f"--tenant={name}", "--kind=executor.slow", "--json").stdout
        reasons = [json.loads(line)["reason"] for line in shown.splitlines()]
        assert any(one.startswith("host 1 of slice-0: jit_multiply takes") for one in reasons)
        assert sps_failing("stragglers", "isc-proxy-unknown")[0] == 3
        running.tell("leave")
        while running.expect_any()["say"] != "left":
            pass
        assert running.wait() == 0


@pytest.mark.usefixtures("limits")
def test_the_verdict_on_an_executor_ends_with_it() -> None:
    with (
        service("tpuv6e:2x4=1", spares=0, arguments=("--engine", "distributed")),
        program(COMPUTING) as running,
    ):
        running.expect("holds")
        slow, peer = (status()["executors"][host]["pid"] for host in (0, 1))
        with burdened(slow):
            _expect(running, "executor.slow", 0)
            os.kill(peer, signal.SIGKILL)
            _expect(running, "executor.slow_ended", 0, "host 0 of slice-0: it has ended")
        wait_until("the status to follow", lambda: not _slow_hosts())


def test_the_engine_local_has_nothing_to_compare() -> None:
    with service("tpuv6e:2x2=1", spares=0):
        assert "engine local" in sps("stragglers").stdout
        assert sps_json("stragglers") == {"engine": "local", "connections": []}
