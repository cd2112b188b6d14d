"""More clients than slices: who has them, who is told so, who waits."""

from __future__ import annotations

import pytest

from harness.embedded import embedded, eventually, nothing_left
from harness.programs import program, status

pytestmark = pytest.mark.race

HOLDER = """
import jax, jax.numpy as jnp
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    x = jax.device_put(jnp.arange(8.0), connection.devices[0])
    say("holds", name=connection.proxy_job_name, value=float((x * x).sum()))
    wait_for("leave")
say("left")
"""

THIRD = """
try:
    isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.SlicesTaken as error:
    say("taken", wanted=error.wanted, free=error.free, holders=list(error.holders),
        position=error.position, message=error.message)
try:
    isc_pathways.connect(expected_tpu_instances={"tpuv5e:2x2": 1}).start()
except errors.InvalidRequestError as error:
    say("no such type", field=error.field, expected=error.expected)
heard = []
def hear(event):
    heard.append(event)
    if event.kind == "tenant.queued":
        say("queued", position=event.data["position"], holders=event.data["holders"])
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=600,
                          on_event=hear) as connection:
    import jax.numpy as jnp
    say("placed", value=float(jnp.ones(3).sum()), slices=[s.state for s in connection.slices])
"""


def test_three_clients_on_two_slices() -> None:
    with embedded(2), program(HOLDER) as first, program(HOLDER) as second:
        names = {first.expect("holds")["name"], second.expect("holds")["name"]}
        assert {tenant["name"] for tenant in status()["tenants"]} == names
        with program(THIRD) as third:
            taken = third.expect("taken")
            assert taken["wanted"] == {"tpuv6e:2x2": 1}
            assert taken["free"].get("tpuv6e:2x2", 0) == 0
            assert len(taken["holders"]) == 2
            owners = {holder.partition(": ")[0] for holder in taken["holders"]}
            assert len(owners) == 1, "of one user on this machine"
            assert f"{owners.pop()} holds 2" in taken["message"]
            refused = third.expect("no such type")
            assert refused["field"] == "expected_tpu_instances"
            assert "tpuv6e:2x2" in refused["expected"]
            queued = third.expect("queued")
            assert queued["position"] == 1
            assert queued["holders"]
            [entry] = eventually(lambda: status()["queue"], "the queue to be seen from outside")
            assert entry["position"] == 1
            eventually(
                lambda: "in the queue at position 1" in "".join(third.stderr), "the line about it"
            )
            first.tell("leave")
            first.expect("left")
            placed = third.expect("placed")
            assert placed["value"] == 3.0
            assert placed["slices"] == ["placed"]
            assert third.wait() == 0
        second.tell("leave")
        second.expect("left")
        assert (first.wait(), second.wait()) == (0, 0)
        eventually(nothing_left, "all to be gone")
