"""Logs of executors in a cluster: those of one connection, out of the logs of workers' pods."""

from __future__ import annotations

import pytest

from harness.deadlines import wait_until
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
QUEUED = (
    """
def tell(event):
    if event.kind == "tenant.queued":
        say("queued")
connecting = functools.partial(connecting, queue_timeout=600, on_event=tell)
"""
    + HOLDER
)


def test_a_connection_has_the_logs_of_its_own_executors(
    namespace: Namespace, place: list[str]
) -> None:
    deployed(namespace, 2, engine=DISTRIBUTED_ENGINE)
    with client(namespace, HOLDER) as ada, client(namespace, HOLDER) as bob:
        names = [one.expect("holds")["name"] for one in (ada, bob)]
        for name in names:
            [executor] = sps_json("status", name, *place)["executors"]
            assert executor["memory_bytes"] > 0
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

        # Not known: its lines would be shown, and new ones are not waited for.
        code, err = sps_failing("logs", "isc-proxy-typo", "--component=executor", "-f", *place)
        assert code == 3
        assert "no lines of executors of isc-proxy-typo" in err
        ada_lines = ("logs", names[0], "--component=executor", "-f", "--lines=1", *place)
        with sps_running(*ada_lines) as tail:
            assert tail.stdout
            assert tail.stdout.readline()
            ada.tell("leave")
            ada.expect("left")
            _, err = tail.communicate(timeout=DEADLINE_S)  # it ends with the connection
            assert tail.returncode == 0, err
        wait_until("the end of the executor to be logged", lambda: _shows_end(names[0], place))
        # Of a connection that has ended, the lines are shown, and new ones are not waited for.
        followed = ("logs", names[0], "--component=executor", "-f", *place)
        assert any("was started" in line for line in sps(*followed).stdout.splitlines())
        bob.tell("leave")
        bob.expect("left")
    nothing_left(namespace)


@pytest.mark.thorough
def test_a_connection_that_waits_has_no_executors(namespace: Namespace, place: list[str]) -> None:
    deployed(namespace, 1, engine=DISTRIBUTED_ENGINE)
    with client(namespace, HOLDER) as holding:
        holding.expect("holds")
        with client(namespace, QUEUED) as waiting:
            waiting.expect("queued")
            [entry] = sps_json("status", *place)["queue"]
            words = ("logs", entry["tenant"], "--component=executor", *place)
            code, err = sps_failing(*words)
            assert code == 3
            assert f"{entry['tenant']} holds no slices yet" in err
            holding.tell("leave")
            holding.expect("left")
            assert waiting.expect("holds")["name"] == entry["tenant"]
            assert "was started" in sps(*words).stdout
            waiting.tell("leave")
            waiting.expect("left")
    nothing_left(namespace)


def _shows_end(name: str, place: list[str]) -> bool:
    lines = sps("logs", name, "--component=executor", *place).stdout.splitlines()
    return any("was killed" in line or " ended with " in line for line in lines)
