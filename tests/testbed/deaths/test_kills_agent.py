"""kill -9 of the agent in a cluster, alone and with its client: who is told, who takes it down."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from harness.deadlines import wait_until
from harness.programs import Program, sps
from harness.testbed.clients import client, journal, proxies, tenant
from harness.testbed.kills import all_free, own_entry, served
from shared_pathways_service.testing.testbed import DeployedService, Object, Testbed

pytestmark = pytest.mark.race

CLIENT = """
import jax, jax.numpy as jnp
connection = connecting(expected_tpu_instances={"tpuv6e:2x2": 2})
try:
    with connection:
        value = jnp.arange(8.0)
        say("connected", name=connection.proxy_job_name)
        wait_for("go on")
        say("value", value=float((value + 1).sum()))
except errors.TunnelError as error:
    say("failed", message=str(error), cause=type(error.__cause__).__name__,
        agent_alive=connection.status().agent_alive, kinds=[e.kind for e in heard])
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}):
    say("again", value=float(jnp.arange(8.0).sum()))
"""

NEXT = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}, queue_timeout=60):
    say("connected")
"""


@pytest.fixture(scope="module")
def service(testbed: Testbed) -> Iterator[DeployedService]:
    """A service of two slices; each test leaves it as it was."""
    with served(testbed) as made:
        yield made


def kill_both(running: Program) -> None:
    agent = own_entry().agent
    os.kill(agent.pid, signal.SIGKILL)
    running.signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    wait_until("the agent's end", lambda: not agent.is_alive())


def test_a_killed_agent_is_reported_and_closing_deletes_the_proxy(
    service: DeployedService,
) -> None:
    with client(service.namespace, CLIENT) as running:
        running.expect("connected")
        agent = own_entry().agent
        os.kill(agent.pid, signal.SIGKILL)
        wait_until("the warning", lambda: "still cleans up" in "".join(running.stderr))
        running.tell("go on")
        # The tunnel was the agent's.
        failed = running.expect("failed")
        assert "the agent" in failed["message"]
        assert "signal 9" in failed["message"]
        assert failed["cause"] == "JaxRuntimeError"
        assert failed["agent_alive"] is False
        assert "agent.lost" in failed["kinds"]
        assert running.expect("again")["value"] == 28.0
        assert running.wait() == 0
        all_free(service)


@pytest.mark.thorough
def test_both_killed_the_next_connect_takes_it_down(service: DeployedService) -> None:
    with client(service.namespace, CLIENT) as running:
        name = running.expect("connected")["name"]
        kill_both(running)
    assert [entry.name for entry in journal()] == [name]
    assert f"batch/v1/jobs {name}" in proxies(service.namespace)
    with client(service.namespace, NEXT) as after:
        # (It waits for the slices that the old proxy holds until the sweep.)
        after.expect("connected")
        assert after.wait() == 0
        all_free(service)


def test_both_killed_sps_list_takes_it_down(
    service: DeployedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in tenant(service.namespace).items():
        monkeypatch.setenv(variable, value)
    with client(service.namespace, CLIENT) as running:
        running.expect("connected")
        kill_both(running)
    assert json.loads(sps("list", "--json").stdout) == []
    all_free(service)


@pytest.mark.thorough
def test_both_killed_the_job_ends_at_its_deadline(
    service: DeployedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = service.namespace
    monkeypatch.setenv("SPS_PROXY_DEADLINE_S", "15")
    with client(namespace, CLIENT) as running:
        name = running.expect("connected")["name"]
        # Moved on for as long as somebody wants it.
        [started] = namespace.items("batch/v1/jobs", fieldSelector=f"metadata.name={name}")
        wait_until("a later deadline", lambda: deadline(job(service, name)) > deadline(started))
        kill_both(running)
    wait_until("the end of the Job", lambda: reason(job(service, name)) == "DeadlineExceeded")
    # Nobody takes anything down: the cluster itself does.
    wait_until("the end of its pods", lambda: not [x for x in proxies(namespace) if "pods" in x])
    wait_until(
        "the end of its process", lambda: not [x for x in namespace.processes() if name in x]
    )
    assert [entry.name for entry in journal()] == [name]
    with client(namespace, NEXT) as after:
        after.expect("connected")
        assert after.wait() == 0
        all_free(service)


def job(service: DeployedService, name: str) -> Object:
    [found] = service.namespace.items("batch/v1/jobs", fieldSelector=f"metadata.name={name}")
    return found


def deadline(job: Object) -> int:
    return int(job["spec"]["activeDeadlineSeconds"])


def reason(job: Object) -> str:
    conditions = job["status"].get("conditions") or ()
    return next((c["reason"] for c in conditions if c["type"] == "Failed"), "")
