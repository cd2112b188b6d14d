"""Executors of the embedded service as their user sees them: logs, events, counters."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S, REPOSITORY
from harness.programs import pids, program, service, sps, sps_failing, status

pytestmark = pytest.mark.race

#: Holds a slice of two hosts whose executors serve.
HOLDER = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x4": 1}) as connection:
    import jax, jax.numpy as jnp
    assert jnp.arange(8).sum() == 28
    say("holds", name=connection.proxy_job_name)
    wait_for("leave")
say("left")
"""
#: Holds a slice of two hosts, and computes on both whenever it is told to.
COMPUTING = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x4": 1}) as connection:
    import jax, jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    chips = NamedSharding(Mesh(jax.devices(), ("chip",)), P("chip"))
    x = jax.device_put(jnp.ones((8, 512, 512)), chips)
    multiply = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, y: y @ x / 512, x))
    jax.block_until_ready(multiply(x))
    say("holds", name=connection.proxy_job_name)
    while sys.stdin.readline() == "compute\\n":
        jax.block_until_ready(multiply(x))
        say("computed")
say("left")
"""

#: Has the executors of two hosts compute one sum.
SUMMING = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x4": 1}):
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    x = np.arange(16, dtype=np.float32)
    chips = NamedSharding(Mesh(jax.devices(), ("chip",)), P("chip"))
    total = jax.jit(lambda x: (x * x).sum())(jax.device_put(x, chips))
    say("sum", value=float(total), expected=float((x * x).sum()))
    wait_for("leave")
"""

CONNECTED = "The proxy has connected"


def _lines(*words: str) -> list[tuple[str, str]]:
    """The lines of `sps logs`, with their sources."""
    shown = [json.loads(line) for line in sps("logs", *words, "--json").stdout.splitlines()]
    return [(one["source"], one["line"]) for one in shown]


def _events(name: str, kind: str) -> list[dict[str, Any]]:
    """Decisions of a kind about a connection."""
    shown = sps("events", f"--tenant={name}", f"--kind={kind}", "--json").stdout.splitlines()
    return [json.loads(line) for line in shown]


def test_the_logs_of_executors_are_those_of_a_connection() -> None:
    with (
        service("tpuv6e:2x4=2", arguments=("--engine", "distributed")),
        program(HOLDER) as ada,
        program(HOLDER) as bob,
    ):
        names = [one.expect("holds")["name"] for one in (ada, bob)]
        mine, others = (
            [one for one in status()["executors"] if one["tenant"] == name] for name in names
        )
        where = [f"{one['slice']}-{one['host']}" for one in mine]
        executors = (names[0], "--component=executor")

        def connected() -> set[str]:
            return {source for source, text in _lines(*executors) if CONNECTED in text}

        # (Workers pass the lines on; a busy one does it late.)
        wait_until("the last lines of both", lambda: connected() == set(where))
        shown = _lines(*executors)
        assert {source for source, _ in shown} == set(where)
        started = [text for _, text in shown if text.endswith("was started")]
        assert started == [f"Process {one['pid']} was started" for one in mine]
        assert not any(str(one["pid"]) in text for one in others for _, text in shown)

        assert {source for source, _ in _lines(*executors, "--host=1")} == {where[1]}
        assert _lines(*executors, "--lines=1") == [
            _lines(*executors, f"--host={i}")[-1] for i in (0, 1)
        ]
        code, err = sps_failing("logs", *executors, "--host=2")
        assert code == 2
        assert f"a host that has executors of {names[0]}: 0, 1" in err
        assert sps_failing("logs", "isc-proxy-nobody", "--component=executor")[0] == 3

        # Followed over the death of one, and the start of the next.
        command = [sys.executable, "-m", "shared_pathways_service.cli", "logs", "-f", *executors]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as tail:
            assert tail.stdout
            assert tail.stdout.readline()
            os.kill(mine[1]["pid"], signal.SIGKILL)
            ended = f"{where[1]}: Process {mine[1]['pid']} was killed by signal 9 (out of memory?)"
            heard = [line.rstrip("\n") for line in iter(tail.stdout.readline, f"{ended}\n")]
            assert ended not in heard
            for line in tail.stdout:
                if line.endswith("was started\n"):
                    break
            [lost] = _events(names[0], "executor.lost")
            cause = f"host 1 of {mine[1]['slice']} was killed by signal 9 (out of memory?)"
            assert lost["reason"] == f"the executor of {cause}"
            assert _events(names[0], "executor.started")
            assert cause in sps("explain", names[0]).stdout
            ada.tell("leave")
            ada.expect("left")
            tail.communicate(timeout=DEADLINE_S)  # it ends with the proxy
        assert tail.returncode == 0
        bob.tell("leave")
        bob.expect("left")
        # The lines outlive their executors.
        wait_until("all executors to end", lambda: not status()["executors"])
        assert (where[1], ended.partition(": ")[2]) in _lines(*executors)


def _restart_manager() -> None:
    """Kills the resource manager, and waits for the end of the next one's recovery."""

    def recoveries() -> int:
        return len(sps("events", "--kind=rm.recovered", "--json").stdout.splitlines())

    before = recoveries()
    [manager] = pids("rm")
    os.kill(manager, signal.SIGKILL)
    wait_until("the recovery", lambda: recoveries() > before)


def test_a_start_is_recorded_once_however_often_the_resource_manager_is_restarted() -> None:
    with (
        service("tpuv6e:2x4=1", arguments=("--engine", "distributed")),
        program(HOLDER) as ada,
    ):
        name = ada.expect("holds")["name"]
        before = [one["pid"] for one in status()["executors"]]
        for _ in range(2):
            _restart_manager()
            wait_until("all reports", lambda: _serving() == before)
        [started] = _events(name, "executor.started")
        [placed] = _events(name, "slice.placed")
        assert _placement(started) == _placement(placed)
        os.kill(before[0], signal.SIGKILL)
        wait_until("the next start", lambda: len(_events(name, "executor.started")) == 2)
        [replaced] = _events(name, "slice.replaced")
        assert _placement(_events(name, "executor.started")[1]) == _placement(replaced)
        ada.tell("leave")
        ada.expect("left")


def _placement(event: dict[str, Any]) -> tuple[str, int]:
    return event["slice"], event["data"]["generation"]


def _serving() -> list[int]:
    """The processes of the executors that have reported to the resource manager."""
    return [one["pid"] for one in status()["executors"] if one["state"] == "serving"]


def test_memory_and_processor_time_of_executors_are_shown() -> None:
    arguments = ("--engine", "distributed", "--beat-interval", "0.5")
    with service("tpuv6e:2x4=1", spares=0, arguments=arguments), program(COMPUTING) as running:
        name = running.expect("holds")["name"]
        wait_until("both to be measured", lambda: all(_cpu_seconds(name)))
        before = _cpu_seconds(name)
        executors = status()["executors"]
        # (JAX alone takes more.)
        assert all(one["memory_bytes"] > 50 << 20 for one in executors)
        assert all(one["memory_limit_bytes"] is None for one in executors)
        measured = [psutil.Process(one["pid"]) for one in executors]
        has_grown = False
        while not has_grown:  # how often that is depends on the machine
            running.tell("compute")
            running.expect("computed")
            has_grown = all(
                sum(one.cpu_times()[:2]) >= then + 0.1
                for one, then in zip(measured, before, strict=True)
            )
        wait_until(
            "their processor time to grow",
            lambda: all(
                now >= then + 0.1 for now, then in zip(_cpu_seconds(name), before, strict=True)
            ),
        )
        printed = json.loads(sps("status", name, "--json").stdout)["executors"]
        assert all(
            now["cpu_seconds"] >= then + 0.1 for now, then in zip(printed, before, strict=True)
        )
        for command in (("status",), ("status", name), ("top", "--once")):
            rows = [
                line.split(maxsplit=3)
                for line in sps(*command).stdout.splitlines()
                if line.strip().startswith("slice-0, host")
            ]
            assert [row[:3] for row in rows] == [["slice-0,", "host", host] for host in "01"]
            assert all(name in row[3] and "MiB" in row[3] and "%" in row[3] for row in rows), rows
        running.tell("leave")
        running.expect("left")


def _cpu_seconds(name: str) -> list[float]:
    """The processor time of a connection's executors; 0: not measured."""
    return [one["cpu_seconds"] or 0.0 for one in status()["executors"] if one["tenant"] == name]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_executors_of_an_ipv6_only_cluster_reach_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As a pod's workers get it, from `status.podIP`.
    monkeypatch.setenv("SPS_EXECUTOR_ADDRESS", "::1")
    with (
        service("tpuv6e:2x4=1", spares=0, arguments=("--engine", "distributed")),
        program(SUMMING) as running,
    ):
        told = running.expect("sum")
        assert told["value"] == told["expected"]
        addresses = [one["address"] for one in status()["executors"]]
        assert len(addresses) == 2
        assert all(address.startswith("[::1]:") for address in addresses), addresses
        running.tell("leave")
        assert running.wait() == 0
