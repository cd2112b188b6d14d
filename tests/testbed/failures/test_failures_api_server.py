"""The API server dies, and comes back, at each moment of a plain connection."""

from __future__ import annotations

import contextlib

import pytest

from harness.deadlines import wait_until
from harness.testbed.clients import KIND, client, journal, nothing_left
from shared_pathways_service.testing.testbed import Testbed, deploy_service, new_namespace
from tests.testbed.roles import prepare_verification

pytestmark = pytest.mark.race

#: Connects, computes, does what a line asks for, and tells what it came to; again and again.
CLIENT = """
import jax, jax.numpy as jnp, numpy as np
told = set()
def hear(event):
    if event.kind in ("service.waiting", "tunnel.broken") and event.kind not in told:
        told.add(event.kind)
        say(event.kind, reason=event.reason)
def connection():
    told.clear()
    return connecting(expected_tpu_instances={"tpuv6e:2x2": 1}, link="plain", on_event=hear)
def serve(c):
    x = jnp.ones((1 << 22,))
    assert float((x + 1).sum()) == 2.0 * (1 << 22)
    say("serving", name=c.proxy_job_name)
    return x
while (work := sys.stdin.readline().strip()) in ("idle", "transfer"):
    try:
        with connection() as c:
            x = serve(c)
            if work == "transfer":
                wait_for("begin")
                say("begun", sum=float(np.asarray(x + 1).sum()))
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
    # Its exit waits for the agent, in vain.
    os.environ["SPS_PATIENCE"] = "0.2"
say("done")
"""


@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_an_api_server_that_is_killed_and_comes_back(disturbed_testbed: Testbed) -> None:
    with contextlib.ExitStack() as stack:
        namespace = stack.enter_context(new_namespace(disturbed_testbed))
        # A service that verifies users needs the API server for new tenants only.
        prepare_verification(namespace)
        deploy_service(namespace, {KIND: 4}, ready=False, verify_users=True)
        idle, transferring, closing, exiting = (
            stack.enter_context(client(namespace, CLIENT)) for _ in range(4)
        )

        # While the service is waited for: nothing but time is lost.
        idle.tell("idle")
        idle.expect("service.waiting")
        disturbed_testbed.kill_api_server()
        disturbed_testbed.start_api_server()
        namespace.add_nodes({KIND: 4}, cpu_nodes=0)
        idle.expect("serving")

        transferring.tell("transfer")
        closing.tell("idle")
        exiting.tell("never close")
        transferring.expect("serving")
        name = closing.expect("serving")["name"]
        left = exiting.expect("serving")["name"]
        # Last, as its transfers take a core until one fails.
        transferring.tell("begin")
        assert transferring.expect("begun")["sum"] == 2.0 * (1 << 22)
        disturbed_testbed.kill_api_server()
        for each in (idle, transferring, closing, exiting):
            assert each.expect("tunnel.broken")["reason"]

        # Who leaves waits until the deletion is certain.
        closing.tell("leave")
        wait_until(
            "the deletion to be begun",
            lambda: any(e.name == name and e.state == "delete" for e in journal()),
        )
        # A program ends all the same, and says what its agent goes on with.
        exiting.tell("leave")
        exiting.expect("done")
        assert exiting.wait() == 0
        assert left in [entry.name for entry in journal()]
        [line] = [line for line in exiting.stderr if "not confirmed deleted" in line]
        assert left in line
        assert f"sps delete {left}" in line

        disturbed_testbed.start_api_server()
        idle.tell("leave")
        for each, cause in (
            (idle, "NoneType"),
            (transferring, "JaxRuntimeError"),
            (closing, "NoneType"),
        ):
            failed = each.expect("failed")
            error = failed["error"]
            assert error["type"] == "TunnelError"
            assert "broke" in error["message"]
            assert "JAX cannot resume a connection" in error["message"]
            assert error["cause"]
            assert error["hint"] == "connect again"
            assert failed["cause"] == cause
        nothing_left(namespace)

        # The next connection works, in a program that lost one.
        transferring.tell("idle")
        transferring.expect("serving")
        transferring.tell("leave")
        transferring.expect("left")
        nothing_left(namespace)
