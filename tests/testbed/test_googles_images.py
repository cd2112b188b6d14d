"""A service of Google's images: no token, no resource manager to ask, placement by the log."""

from __future__ import annotations

from shared_pathways_service.core.kubernetes.service_inputs import DEFAULT_SERVER_IMAGE
from shared_pathways_service.testing.testbed import Namespace, deploy_service
from tests.testbed.clients import KIND, client, nothing_left

SOURCE = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
    import jax, jax.numpy as jnp
    say("runs", value=float(jnp.arange(4.0).sum()), devices=len(jax.devices()),
        placed=[[event.data["virtual_index"], event.data["instance_type"]]
                for event in heard if event.kind == "slice.placed"],
        states=[view.state for view in connection.slices])
    wait_for("leave")
"""

REFUSED = """
try:
    connecting(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.CapacityError as error:
    say("refused", error=error.to_json())
"""


def test_placement_is_read_from_the_proxys_log(namespace: Namespace) -> None:
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    deploy_service(namespace, {KIND: 2}, image=DEFAULT_SERVER_IMAGE)
    with client(namespace, SOURCE) as running:
        told = running.expect("runs")
        assert (told["value"], told["devices"]) == (6.0, 8)
        assert sorted(told["placed"]) == [[0, KIND], [1, KIND]]
        assert told["states"] == ["placed", "placed"]
        assert not namespace.items("secrets")
        # A request that it cannot meet: FAILED_PRECONDITION in the log.
        with client(namespace, REFUSED) as other:
            refused = other.expect("refused")["error"]
            assert refused["type"] == "CapacityError"
            assert other.wait() == 0
        running.tell("leave")
        assert running.wait() == 0
    nothing_left(namespace)
