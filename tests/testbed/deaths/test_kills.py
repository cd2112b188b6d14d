"""kill -9 of a client in a cluster, at each step of its session, and what a signal asks for."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from harness.layers.thorough import thorough
from harness.testbed.clients import client
from harness.testbed.kills import all_free, events_told_by, served, wait_for_event
from shared_pathways_service.testing.testbed import DeployedService, Testbed

pytestmark = pytest.mark.race

#: Kills itself when the agent tells that a step begins: whatever comes is the agent's alone to do.
AT_A_STEP = """
import signal
def die(event):
    if event.kind == "connect.STEP":
        os.kill(os.getpid(), signal.SIGKILL)
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}, on_event=die):
    say("connected")
"""

#: Waits for slices in the queue, with the proxy serving.
IN_THE_QUEUE = """
def hear(event):
    if event.kind in ("tenant.queued", "connect.place"):
        heard.append(event.kind)
        if len(set(heard)) == 2:
            say("queued")
connecting(expected_tpu_instances={"tpuv6e:2x2": 2}, queue_timeout=600, on_event=hear).start()
"""
HOLDER = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}):
    say("holds")
    wait_for("leave")
"""

CONNECTED = """
import time
import jax, jax.numpy as jnp
from jax import lax
def forever(x):
    return lax.while_loop(lambda c: c[0] < 1e30, lambda c: (c[0] + 1, c[1] * 0.999), (0.0, x))[1]
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}):
"""
IDLE = CONNECTED + "    say('connected'); wait_for_signal()"
FETCHING = (
    CONNECTED + "    x = jax.jit(forever)(jnp.ones(4)); say('connected'); x.block_until_ready()"
)

#: Interrupted while it connects, a program has nothing of it left, and can connect again.
INTERRUPTED = """
import signal, jax.numpy as jnp
for kind in ("connect.preflight", "connect.create", "connect.start", "connect.probe"):
    def interrupt(event, kind=kind):
        if event.kind == kind:
            os.kill(os.getpid(), signal.SIGINT)
    try:
        connecting(expected_tpu_instances={"tpuv6e:2x2": 2}, on_event=interrupt).start()
        raise AssertionError(f"no interrupt at {kind}")
    except KeyboardInterrupt:
        say("interrupted")
        wait_for("go on")
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}):
    say("connected", value=float(jnp.arange(4.0).sum()))
"""

USUAL_STEPS = ("create", "tunnel", "place")
FURTHER_STEPS = ("preflight", "start", "probe", "serving", "delete")


@pytest.fixture(scope="module")
def service(testbed: Testbed) -> Iterator[DeployedService]:
    """A service of two slices; each test leaves it as it was."""
    with served(testbed) as made:
        yield made


@pytest.mark.parametrize("step", [*USUAL_STEPS, *thorough(*FURTHER_STEPS)])
def test_a_client_killed_at_a_step_leaves_nothing(service: DeployedService, step: str) -> None:
    with client(service.namespace, AT_A_STEP.replace("STEP", step)) as running:
        if step == "delete":
            running.expect("connected")
        assert running.wait() == -signal.SIGKILL
        # (Before it creates anything there is nothing left, whatever it does next.)
        wait_for_event("the agent's last event", lambda event: event.kind == "connect.ended")
        all_free(service)
    told = events_told_by()
    kinds = [event.kind for event in told]
    # Nor had the resource manager to wait for a proxy that was no more.
    tenants = {event.tenant for event in told if event.tenant}
    ends = [line for line in service.log().splitlines() if "tenant.gone" in line]
    waited_for = [line for line in ends if "did not come back" in line]
    assert not [line for line in waited_for if any(name in line for name in tenants)]
    # The agent noticed in the very step, or a moment later, and ended what had been begun.
    assert kinds[-1] == "connect.ended"
    [ending] = [event for event in told if event.kind == "connect.ending"]
    if step != "delete":
        assert kinds.index(f"connect.{step}") < kinds.index("connect.ending")
        assert ending.reason in (
            "its owner has ended",
            "the client closed its connection to the agent",
        )


def test_a_client_killed_in_the_queue_leaves_nothing(service: DeployedService) -> None:
    with client(service.namespace, HOLDER) as holder:
        holder.expect("holds")
        with client(service.namespace, IN_THE_QUEUE) as running:
            running.expect("queued")
            running.signal(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
        holder.tell("leave")
        assert holder.wait() == 0
        all_free(service)


@pytest.mark.parametrize(
    ("source", "number"),
    [
        pytest.param(IDLE, signal.SIGINT, id="idle-2"),
        pytest.param(IDLE, signal.SIGTERM, id="idle-15", marks=pytest.mark.thorough),
        pytest.param(IDLE, signal.SIGKILL, id="idle-9", marks=pytest.mark.thorough),
        pytest.param(FETCHING, signal.SIGINT, id="fetching-2", marks=pytest.mark.thorough),
        pytest.param(FETCHING, signal.SIGTERM, id="fetching-15", marks=pytest.mark.thorough),
        pytest.param(FETCHING, signal.SIGKILL, id="fetching-9"),
    ],
)
def test_a_client_ended_by_a_signal_leaves_nothing(
    service: DeployedService, source: str, number: signal.Signals
) -> None:
    with client(service.namespace, source) as running:
        running.expect("connected")
        running.signal(number)
        assert running.wait() == -number
        all_free(service)


def test_a_client_interrupted_while_it_connects_leaves_nothing(service: DeployedService) -> None:
    with client(service.namespace, INTERRUPTED) as running:
        for _ in range(4):
            running.expect("interrupted")
            all_free(service)
            running.tell("go on")
        assert running.expect("connected")["value"] == 6.0
        assert running.wait() == 0
        all_free(service)
