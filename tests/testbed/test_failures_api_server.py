"""The API server dies, and comes back, at each moment of a connection."""

from __future__ import annotations

import pytest

from shared_pathways_service.testing.testbed import Testbed, deploy_service, new_namespace
from tests.e2e.harness import wait_until
from tests.testbed.clients import KIND, client, journal, nothing_left

#: A round: connect, compute, then do what is asked for and tell what it came to.
CLIENT = """
import jax, jax.numpy as jnp, numpy as np
told = set()
def hear(event):
    if event.kind in ("service.waiting", "tunnel.broken") and event.kind not in told:
        told.add(event.kind)
        say(event.kind, reason=event.reason)
def connection():
    told.clear()
    return connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, on_event=hear)
def serve(c):
    x = jnp.ones((1 << 24,))
    assert float((x + 1).sum()) == 2.0 * (1 << 24)
    say("serving", name=c.proxy_job_name)
    return x
while (work := sys.stdin.readline().strip()) in ("idle", "transfer"):
    try:
        with connection() as c:
            x = serve(c)
            while work == "transfer":
                np.asarray(x + 1)
            wait_for("leave")
    except errors.SharedPathwaysError as error:
        say("failed", error=error.to_json(), cause=type(error.__cause__).__name__)
    else:
        say("left")
if work == "never close":
    serve(c := connection().start())
    wait_for("leave")
say("done")
"""


@pytest.mark.timeout(600)
def test_an_api_server_that_is_killed_and_comes_back(own_testbed: Testbed) -> None:
    with new_namespace(own_testbed) as namespace:
        deploy_service(namespace, {KIND: 1}, ready=False)
        with client(namespace, CLIENT) as running:
            # While the service is waited for: nothing but time is lost.
            running.tell("idle")
            running.expect("service.waiting")
            own_testbed.kill_api_server()
            own_testbed.start_api_server()
            namespace.add_nodes({KIND: 1}, cpu_nodes=0)
            running.expect("serving")

            # While nothing is asked of the proxy: it is told at once, and again at the end.
            own_testbed.kill_api_server()
            running.expect("tunnel.broken")
            own_testbed.start_api_server()
            running.tell("leave")
            error = running.expect("failed")["error"]
            assert error["type"] == "TunnelError"
            assert "broke" in error["message"]
            assert "JAX cannot resume a connection" in error["message"]
            assert error["cause"]
            assert error["hint"] == "connect again"
            nothing_left(namespace)

            # In the midst of a transfer; and the next connection works.
            running.tell("transfer")
            running.expect("serving")
            own_testbed.kill_api_server()
            running.expect("tunnel.broken")
            own_testbed.start_api_server()
            failed = running.expect("failed")
            assert failed["error"]["type"] == "TunnelError"
            assert failed["cause"] == "JaxRuntimeError"
            nothing_left(namespace)

            # At its end: who leaves waits until the deletion is certain.
            running.tell("idle")
            running.expect("serving")
            own_testbed.kill_api_server()
            running.tell("leave")
            wait_until("the deletion to be begun", lambda: journal()[0].state == "delete")
            own_testbed.start_api_server()
            running.expect("tunnel.broken")
            assert running.expect("failed")["error"]["type"] == "TunnelError"
            nothing_left(namespace)

            # A program ends all the same; its agent deletes the proxy when it can.
            running.tell("never close")
            running.expect("serving")
            own_testbed.kill_api_server()
            running.expect("tunnel.broken")
            running.tell("leave")
            running.expect("done")
            assert running.wait() == 0
            [left] = journal()
            assert left.name in "".join(running.stderr)
            own_testbed.start_api_server()
            nothing_left(namespace)
