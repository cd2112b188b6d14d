"""Far from a cluster, reading a value takes one round trip, with Google's proxy as well."""

from __future__ import annotations

import pytest

from harness.openmetrics import scrape, value
from harness.programs import program
from harness.testbed.clients import PRELUDE, journal, nothing_left, tenant
from harness.testbed.ways import open_way
from shared_pathways_service.testing.testbed import DeployedService

pytestmark = pytest.mark.race

READS = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, numpy as np
    step = jax.jit(lambda x: (x + 1, x.sum()))
    x = jax.device_put(np.zeros(8, np.float32))
    losses = []
    for _ in range(READS):
        x, loss = step(x)
        losses.append(float(loss))
    say("read", losses=losses)
    wait_for("leave")
"""
COUNT = 20
#: Seconds of the way, in each direction: from 10 ms there and back on, values are sent early.
DELAY_S = 0.01
#: Reads whose lookup by the far end may take too long on a busy machine.
LATE = 2


@pytest.mark.timeout(600)
def test_a_steps_loss_is_sent_before_jax_asks_for_it(
    any_service: DeployedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = any_service.namespace
    monkeypatch.setenv("SPS_AGENT_METRICS_PORT", "0")
    with open_way(namespace) as way:
        way.delay(DELAY_S)
        variables = dict(tenant(namespace))
        variables["KUBECONFIG"] = str(way.kubeconfig(namespace, namespace.user("tenant")))
        source = PRELUDE + READS.replace("READS", str(COUNT))
        with program(source, env=variables) as running:
            assert running.expect("read")["losses"] == [8.0 * step for step in range(COUNT)]
            [entry] = journal()
            answered = value(scrape(entry.metrics), "sps_agent_link_early_answers_total")
            assert answered >= COUNT - LATE
            running.tell("leave")
            assert running.wait() == 0
    nothing_left(namespace)
