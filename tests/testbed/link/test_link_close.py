"""A connection is closed while its link is lost."""

from __future__ import annotations

import pytest

from harness.programs import program
from harness.testbed.clients import PRELUDE, nothing_left, proxies, tenant
from harness.testbed.kills import wait_for_event
from harness.testbed.ways import open_way
from shared_pathways_service.events.session import DeleteStarted, LinkLost
from shared_pathways_service.testing.testbed import DeployedService

pytestmark = pytest.mark.race

HOLDS = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, numpy as np
    there = jax.device_put(np.ones(1000, np.float32))
    there + there  # compiled, for which JAX would wait
    say("holds", sum=float(there.sum()))
    wait_for("leave")
    unanswered = there + there
say("left", cpu=jax.default_backend())
"""


@pytest.mark.timeout(600)
def test_the_proxy_is_deleted_as_soon_as_the_api_server_is_reached(
    service: DeployedService,
) -> None:
    namespace = service.namespace
    with open_way(namespace) as way:
        variables = dict(tenant(namespace))
        variables["KUBECONFIG"] = str(way.kubeconfig(namespace, namespace.user("tenant")))
        with program(PRELUDE + HOLDS, env=variables) as running:
            assert running.expect("holds")["sum"] == 1000
            way.refuse()
            assert way.cut()
            wait_for_event("the loss", lambda event: isinstance(event, LinkLost))
            running.tell("leave")
            wait_for_event("the deletion's begin", lambda event: isinstance(event, DeleteStarted))
            assert proxies(namespace)
            assert not running.has_said
            way.open()
            # The link itself need not be resumed.
            assert running.expect("left")["cpu"] == "cpu"
            assert running.wait() == 0
    nothing_left(namespace)
