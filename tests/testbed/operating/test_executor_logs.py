"""Logs of executors in a cluster: those of one connection, out of the logs of workers' pods."""

from __future__ import annotations

import signal

import pytest

from harness.programs import DEADLINE_S, sps, sps_failing, sps_json, sps_running
from harness.testbed.clients import client, deployed, nothing_left
from shared_pathways_service.constants import DISTRIBUTED_ENGINE
from shared_pathways_service.testing.testbed import Namespace

pytestmark = pytest.mark.race

HOLDER = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax.numpy as jnp
    assert jnp.arange(8).sum() == 28
    say("holds", name=connection.proxy_job_name)
    wait_for("leave")
say("left")
"""


def test_a_connection_has_the_logs_of_its_own_executors(
    namespace: Namespace, place: list[str]
) -> None:
    deployed(namespace, 2, engine=DISTRIBUTED_ENGINE)
    with client(namespace, HOLDER) as ada, client(namespace, HOLDER) as bob:
        names = [one.expect("holds")["name"] for one in (ada, bob)]
        for name in names:
            [executor] = sps_json("status", name, *place)["executors"]
            words = ("logs", name, "--component=executor", *place)
            lines = sps(*words).stdout.splitlines()
            source = f"{executor['slice']}-{executor['host']}: "
            assert all(line.startswith(source) for line in lines), lines
            assert f"{source}Process {executor['pid']} was started" in lines
            assert sum("was started" in line for line in lines) == 1
            assert sps(*words, "--lines=1").stdout.splitlines() == lines[-1:]
            code, err = sps_failing(*words, "--host=1")
            assert code == 2
            assert f"a host that has executors of {name}: 0" in err

        ada_lines = ("logs", names[0], "--component=executor", "-f", "--lines=1", *place)
        with sps_running(*ada_lines) as tail:
            assert tail.stdout
            assert tail.stdout.readline()
            ada.tell("leave")
            ada.expect("left")
            assert any("was killed" in line or "told to" in line for line in tail.stdout)
            tail.send_signal(signal.SIGINT)
            tail.communicate(timeout=DEADLINE_S)
            assert tail.returncode == 130
        bob.tell("leave")
        bob.expect("left")
    nothing_left(namespace)
