"""A tenant of higher priority takes the slices of one that computes, which comes back by itself."""

from __future__ import annotations

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import program, status

pytestmark = pytest.mark.race

#: Computes without end, until its work is lost; and once more when its slice is back.
LOW = """
import queue
from harness.deadlines import deadline
heard = queue.SimpleQueue()
told = {"tenant.preempting", "slice.unplaced", "tenant.preempted", "slice.placed"}
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, priority="low-priority-job",
                          on_event=heard.put) as connection:
    import jax, jax.numpy as jnp
    step = jax.jit(lambda x: x + 1)
    x = step(jnp.zeros(4))
    say("computes", name=connection.proxy_job_name)
    try:
        while True:
            x = step(x)
            x.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        say("lost", error=str(error))
    kinds = []
    def hear_until(enough):
        while not enough():
            event = heard.get(timeout=deadline(150))
            if event.kind in told:
                kinds.append(event.kind)
    hear_until(lambda: "tenant.preempted" in kinds)
    say("waits", state=connection.status().state)
    connection.wait_until_placed(timeout=deadline(150))
    states = [connection.status().state, *(part.state for part in connection.slices)]
    hear_until(lambda: kinds.count("slice.placed") == 2)
    y = None
    while y is None:  # the proxy hears of a slice a moment before or after its client
        try:
            y = step(jnp.zeros(4)).tolist()
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
    say("back", kinds=kinds, y=y, states=states)
"""
HIGH = """
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, priority="high-priority-job",
                          queue_timeout=600) as connection:
    import jax.numpy as jnp
    say("computes", y=(jnp.ones(4) * 3).tolist())
    wait_for("leave")
say("left")
"""


def test_a_preempted_tenant_is_notified_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPS_PREEMPTION_GRACE_S", "1")
    with embedded(1), program(LOW) as low:
        name = low.expect("computes")["name"]
        with program(HIGH) as high:
            assert high.expect("computes")["y"] == [3.0] * 4
            lost = low.expect("lost")["error"]
            assert "DATA_LOSS" in lost
            assert "preempted by" in lost
            assert low.expect("waits")["state"] == "preempted"
            states = {one["name"]: (one["state"], one["priority"]) for one in status()["tenants"]}
            assert states.pop(name) == ("preempted", 1_000_000)
            assert list(states.values()) == [("running", 2_000_000)]
            assert [one["tenant"] for one in status()["queue"]] == [name]
            high.tell("leave")
            high.expect("left")
        back = low.expect("back")
        assert back["y"] == [1.0] * 4
        assert back["states"] == ["serve", "placed"]
        kinds = back["kinds"]
        order = [kinds.index(kind) for kind in ("tenant.preempting", "slice.unplaced")]
        assert order == sorted(order)
        assert kinds[0] == "slice.placed"
        assert kinds[-1] == "slice.placed"
        assert "tenant.preempted" in kinds
        assert low.wait() == 0
        said = "".join(low.stderr)
        assert "its slices will be taken in" in said
        assert "it waits, and comes back by itself" in said
        wait_until("the slice to be free", nothing_left)
