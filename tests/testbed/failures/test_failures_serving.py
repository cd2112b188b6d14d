"""A proxy that ends under work: each way it can, one after the other, and the next one works."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.deadlines import wait_until
from harness.testbed.clients import client, deployed, nothing_left
from shared_pathways_service.servers.serving.last_requests_file import read_unfinished
from shared_pathways_service.testing.testbed import Namespace

pytestmark = pytest.mark.race

#: The program of the rounds, as the proxy names it.
PROGRAM = "jit__lambda"
#: A round: connect to a proxy on a node, compute, and fetch until that is an error.
CLIENT = """
import jax, jax.numpy as jnp
forever = jax.jit(lambda x: jax.lax.while_loop(
    lambda c: c[0] < 1e30, lambda c: (c[0] + 1, c[1] * 0.999), (0.0, x))[1])
def hear(event):
    if event.kind == "proxy.exited":
        say("heard", reason=event.reason)
while node := sys.stdin.readline().strip():
    try:
        with connecting(expected_tpu_instances={"tpuv6e:2x2": 1},
                        proxy_options=[f"node_selector:kubernetes.io/hostname={node}"]) as c:
            x = jnp.arange(8.0)
            assert float((x * x).sum()) == 140.0
            running = forever(x)
            say("serving", pod=c.proxy_pod_name, name=c.proxy_job_name)
            running.block_until_ready()
    except errors.SharedPathwaysError as error:
        say("failed", error=error.to_json(), cause=type(error.__cause__).__name__)
"""


class Bench:
    """A service, and one client program that lives through all of it."""

    def __init__(self, namespace: Namespace, running: Any) -> None:
        self.namespace = namespace
        self._client = running

    def failure(self, node: str, fault: Callable[[str, str], object]) -> dict[str, Any]:
        """Has the program connect, injects the fault, and returns the error it came to."""
        self._client.tell(node)
        serving = self._client.expect("serving")
        # The proxy has answered already when an executor takes the program from its queue.
        record = self._record(serving["pod"])
        alone = (f"{PROGRAM} on slice 0",)
        wait_until("the program to run", lambda: read_unfinished(record).running == alone)
        fault(serving["pod"], serving["name"])
        failed: dict[str, Any] = self._client.expect("failed")
        assert failed["cause"] == "JaxRuntimeError", failed
        error: dict[str, Any] = failed["error"]
        assert serving["name"] in error["message"]
        assert "connect again" in error["hint"]
        nothing_left(self.namespace)
        return error

    def _record(self, pod: str) -> Path:
        """Returns where a proxy records what it runs: its pod's termination message."""
        [pid] = self.namespace.processes()[pod].values()
        flag = "--last_requests_file="
        [path] = [w.removeprefix(flag) for w in psutil.Process(pid).cmdline() if w.startswith(flag)]
        return Path(path)

    # ---- faults

    def kill_proxy(self, pod: str, name: str) -> None:
        [pid] = self.namespace.processes()[pod].values()
        os.kill(pid, signal.SIGKILL)

    def delete_pod(self, pod: str, name: str) -> None:
        self.namespace.delete("pods", pod)

    def delete_job(self, pod: str, name: str) -> None:
        self.namespace.delete("batch/v1/jobs", name)


@pytest.mark.timeout(600)
def test_each_end_of_a_proxy_that_serves(namespace: Namespace) -> None:
    deployed(namespace, 1)
    home, drained, vanished = namespace.nodes[0], *namespace.add_nodes({}, cpu_nodes=2)
    with client(namespace, CLIENT) as running:
        bench = Bench(namespace, running)

        error = bench.failure(home, bench.kill_proxy)
        assert error["type"] == "ProxyFailed", error
        # (util-linux 2.38, which makes the namespaces, tells of any signal as of exit code 1.)
        assert error["exit_code"] in (-9, 1)
        assert "it was ended by signal 9" in error["message"] or "exit code 1" in error["message"]
        # Nothing of the proxy's own ran any more: its pod's termination message tells.
        assert f"while it was running {PROGRAM} on slice 0;" in error["message"]
        assert "its last requests, newest first: " in error["message"]
        assert any("Pathways Proxy serving on" in line for line in error["log_tail"])

        error = bench.failure(home, bench.delete_pod)
        assert error["type"] == "ProxyFailed", error
        assert "lost its pod, which was deleted" in error["message"]

        error = bench.failure(home, bench.delete_job)
        assert error["type"] == "ProxyFailed", error
        assert "deleted from outside this session" in error["message"]

        error = bench.failure(drained, lambda *_: namespace.testbed.drain(drained))
        assert error["type"] == "ProxyFailed", error
        assert f"evicted from {drained}" in error["message"]

        error = bench.failure(vanished, lambda *_: namespace.testbed.vanish(vanished))
        assert error["type"] == "ProxyFailed", error
        assert f"{vanished} was lost" in error["message"]
