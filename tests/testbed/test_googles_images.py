"""A service of Google's images: no token, no resource manager to ask, placement by the log."""

from __future__ import annotations

import platform

from shared_pathways_service.agent.request import user_name
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
except errors.SlicesTaken as error:
    say("refused", error=error.to_json())
"""

#: Beside one that holds all: it waits, and is placed when that one leaves.
QUEUED = """
def tell(event):
    if event.kind == "tenant.queued":
        say("queued")

with connecting(
    expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=300.0, on_event=tell
) as connection:
    import jax
    say("runs", devices=len(jax.devices()))
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
        # What other proxies hold is not in the log: their pods say it.
        with client(namespace, REFUSED) as other:
            refused = other.expect("refused")["error"]
            assert (refused["wanted"], refused["free"]) == ({KIND: 1}, {KIND: 0})
            assert refused["holders"] == [f"{user_name()}@{platform.node()}: 2 x {KIND}"]
            assert other.wait() == 0
        with client(namespace, QUEUED) as waiting:
            waiting.expect("queued")
            running.tell("leave")
            assert running.wait() == 0
            assert waiting.expect("runs")["devices"] == 4
            assert waiting.wait() == 0
    nothing_left(namespace)
