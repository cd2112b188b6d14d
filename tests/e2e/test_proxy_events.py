"""An event that a proxy reports reaches the user's program and the history."""

from __future__ import annotations

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import program, sps

pytestmark = pytest.mark.race

NEAR_LIMIT = """
import queue
from harness.deadlines import deadline
received = queue.SimpleQueue()
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1},
                          on_event=received.put) as connection:
    import jax, jax.numpy as jnp
    x = jax.block_until_ready(jax.device_put(jnp.zeros(240_000, jnp.float32)))
    while (event := received.get(timeout=deadline(150))).kind != "proxy.memory_near_limit":
        pass
    say("near", name=connection.proxy_job_name, event=event.to_dict())
    wait_for("end")
"""


def test_a_proxy_near_its_memory_limit_warns_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_PROXY_MEMORY_LIMIT_BYTES", "1000000")
    with embedded(1), program(NEAR_LIMIT) as user:
        near = user.expect("near")
        name, event = near["name"], near["event"]
        assert (event["source"], event["tenant"]) == ("proxy", name)
        assert event["data"]["limit_bytes"] == 1_000_000
        assert event["data"]["used_bytes"] >= 960_000
        shown = sps("events", "--tenant", name, "--kind", "memory_near_limit").stdout
        assert f"the proxy of {name} is near its memory limit: device " in shown
        user.tell("end")
        assert user.wait() == 0
        assert "its proxy is near its memory limit (device " in "".join(user.stderr)
        wait_until("the slice to be free", nothing_left)
