"""kill -9 of each process of a connection: who is told, what goes on, and that nothing is left."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from harness.embedded import embedded, eventually, free_slices, journal, nothing_left, shut_down
from harness.programs import pids, program, status
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.serving.last_requests_file import read_unfinished

pytestmark = pytest.mark.race

CLIENT = """
import subprocess, time
import jax, jax.numpy as jnp
heard = []
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}, on_event=heard.append) as c:
    value = jnp.arange(8.0)
    children = []
    if FORK:
        import warnings; warnings.simplefilter("ignore")
        if (child := os.fork()) == 0:
            time.sleep(600); os._exit(0)
        children = [child, subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL).pid]
    say("connected", agent=c.status().agent_alive, name=c.proxy_job_name, children=children)
    wait_for("go on")
    REST
"""


def client(rest: str = "pass", *, fork: bool = False) -> str:
    return CLIENT.replace("FORK", str(fork)).replace("REST", rest)


def test_kill_of_client_and_agent_together_and_each_alone() -> None:
    # One after the other, on one service: each finds all slices free.
    with embedded(2):
        client_is_killed(fork=False)
        client_is_killed(fork=True)
        agent_is_killed()
        both_are_killed()


def client_is_killed(*, fork: bool) -> None:
    """Its slices are free, also when children that it forked live on."""
    with program(client(fork=fork)) as running:
        said = running.expect("connected")
        assert free_slices() == 0
        try:
            running.signal(signal.SIGKILL)
            eventually(nothing_left, "the proxy to be gone and its slices to be free")
            for child in said["children"]:
                os.kill(child, 0)
        finally:
            for child in said["children"]:
                os.kill(child, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL


def agent_is_killed() -> None:
    """It is told, and closing cleans up."""
    rest = """
    # (The warning is written first.)
    while not any(e.kind == "agent.lost" for e in heard):
        time.sleep(0.01)
    say("value", value=float((value + 1).sum()), agent_alive=c.status().agent_alive,
        kinds=[e.kind for e in heard])
"""
    with program(client(rest.strip())) as running:
        running.expect("connected")
        [entry] = journal()
        os.kill(entry.agent.pid, signal.SIGKILL)
        eventually(lambda: "still cleans up" in "".join(running.stderr), "the warning")
        running.tell("go on")
        value = running.expect("value")
        assert value["value"] == 36.0
        assert value["agent_alive"] is False
        assert "agent.lost" in value["kinds"]
        assert running.wait() == 0
        eventually(nothing_left, "the new agent's clean-up")


def both_are_killed() -> None:
    """The supervisor ends the proxy, and the next agent sweeps the journal."""
    with program(client()) as running:
        running.expect("connected")
        [entry] = journal()
        os.kill(entry.agent.pid, signal.SIGKILL)
        running.signal(signal.SIGKILL)
        eventually(lambda: not status()["tenants"], "the supervisor to end the proxy")
        assert [left.session for left in journal()] == [entry.session]
        with program('with isc_pathways.connect(): say("connected")') as after:
            after.expect("connected")
            assert after.wait() == 0
        eventually(nothing_left, "the sweep")


def test_kill_of_the_proxy_is_an_error_that_says_so_and_the_next_connect_works() -> None:
    source = """
import jax, jax.numpy as jnp
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2})
try:
    with connection:
        value = jnp.arange(8.0) + 1
        forever = jax.jit(lambda x: jax.lax.while_loop(
            lambda c: c[0] < 1e30, lambda c: (c[0] + 1, c[1] * 0.999), (0.0, x))[1])
        running = forever(value)
        say("connected")
        wait_for("go on")
        float(value.sum())
except errors.ProxyFailed as error:
    say("failed", message=str(error), code=error.exit_code, tail=list(error.log_tail),
        cause=type(error.__cause__).__name__, state=connection.status().state)
try:
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}):
        say("again", value=float(jnp.arange(8.0).sum()))
        wait_for("leave")
except errors.ProxyFailed as error:
    say("at the end", message=str(error), cause=error.__cause__)
say("still", value=float(jnp.arange(3.0).sum()))
"""
    with embedded(2), program(source) as running:
        running.expect("connected")
        # The proxy has answered already when an executor takes the program from its queue.
        [record] = Settings.load().runtime_dir.rglob("*.last")
        alone = ("jit__lambda on slice 0",)
        eventually(lambda: read_unfinished(record).running == alone, "the program to run")
        [proxy] = pids("proxy")
        os.kill(proxy, signal.SIGKILL)
        running.tell("go on")
        failed = running.expect("failed")
        assert "SIGKILL while it was running jit__lambda on slice 0;" in failed["message"]
        assert "its last requests, newest first: " in failed["message"]
        assert "; report: " in failed["message"]
        assert failed["code"] == -signal.SIGKILL
        assert failed["tail"]
        assert failed["cause"] == "JaxRuntimeError"
        assert failed["state"] == "failed"
        assert running.expect("again")["value"] == 28.0
        [proxy] = pids("proxy")
        os.kill(proxy, signal.SIGKILL)
        eventually(lambda: "".join(running.stderr).count("has ended") == 2, "the news of it")
        running.tell("leave")
        # Nothing in the block noticed; leaving says it all the same.
        assert "SIGKILL" in running.expect("at the end")["message"]
        assert running.expect("still")["value"] == 3.0
        assert running.wait() == 0
        eventually(nothing_left, "all to be gone")


def test_a_killed_supervisor_is_reported_and_replaced_by_the_next_connect() -> None:
    source = """
import jax, jax.numpy as jnp
try:
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
        say("connected")
        wait_for("go on")
        float(jnp.arange(8.0).sum())
except (errors.ProxyFailed, errors.TunnelError) as error:
    say("failed", message=str(error), cause=type(error.__cause__).__name__)
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
    say("again", value=float(jnp.arange(8.0).sum()))
"""
    with embedded(2) as service, program(source) as running:
        running.expect("connected")
        children = [process["pid"] for process in status()["processes"]]
        service.kill()
        eventually(lambda: not any(map(psutil.pid_exists, children)), "its children to end")
        running.tell("go on")
        assert running.expect("failed")["cause"] == "JaxRuntimeError"
        try:
            assert running.expect("again")["value"] == 28.0
            assert running.wait() == 0
            assert status()["service"]["home"] == "embedded"
            eventually(nothing_left, "all to be gone")
        finally:
            shut_down()
