"""What one connect() and close() ask of the API server, counted by the server itself."""

from __future__ import annotations

from shared_pathways_service.testing.testbed import Namespace
from tests.testbed.clients import client, deployed, nothing_left

#: Beside watches and tunnel dials; the issue that asked for the checks set it.
MOST = 16

ONCE = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}):
    import jax
    say("connected", devices=len(jax.devices()))
"""


def test_one_connection_costs_few_requests(namespace: Namespace) -> None:
    deployed(namespace, 2)
    with client(namespace, ONCE) as running:
        assert running.expect("connected")["devices"] == 8
        assert running.wait() == 0
    nothing_left(namespace)
    asked = namespace.testbed.requests_of(namespace.user("tenant"))
    single = [entry for entry in asked if not (entry.is_watch or entry.is_dial)]
    assert len(single) <= MOST, "\n".join(map(str, single))
    # All that it asks for is permitted, and there.
    refused = [e for e in asked if e.code >= 400 and not e.is_dial]
    assert not refused, refused
    assert {"selfsubjectrulesreviews", "jobsets", "pods", "jobs", "secrets"} <= {
        entry.resource for entry in asked
    }
