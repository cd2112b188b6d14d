"""Executors of the embedded service as their user sees them: logs, events, counters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from harness.processes import DEADLINE_S, REPOSITORY
from harness.programs import program, service, sps, sps_failing, status, wait_until

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
        shown = _lines(*executors)
        assert {source for source, _ in shown} == set(where)
        started = [text for _, text in shown if text.endswith("was started")]
        assert started == [f"Process {one['pid']} was started" for one in mine]
        assert not any(str(one["pid"]) in text for one in others for _, text in shown)
        assert any("The proxy has connected" in text for _, text in shown)

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
