"""A connection that does nothing is warned, loses its slices, and works again when it is used."""

from __future__ import annotations

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import program, status

pytestmark = [pytest.mark.heavy, pytest.mark.race]

IDLE = """
import queue
from harness.deadlines import deadline
heard = queue.SimpleQueue()
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1},
                          on_event=heard.put) as connection:
    import jax, jax.numpy as jnp
    step = jax.jit(lambda x: x + 1)
    def compute(read):
        while True:  # to be slow to begin is idle, too
            try:
                return read(step(jnp.zeros(4)))
            except jax.errors.JaxRuntimeError as error:
                assert "DATA_LOSS" in str(error), error
    x = compute(jax.block_until_ready)
    say("computes", name=connection.proxy_job_name)
    wait_for("work")
    try:
        x.tolist()
    except jax.errors.JaxRuntimeError as error:
        say("lost", error=str(error))
    # (The proxy hears of a slice a moment before or after its client.)
    y = compute(jax.device_get).tolist()
    kinds = []
    while "slice.unplaced" not in kinds or kinds[-1] != "slice.placed":
        kinds.append(heard.get(timeout=deadline(150)).kind)
    say("back", y=y, kinds=kinds)
"""
#: One program that runs for several times as long as a tenant may be idle.
LONG = """
import time
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, jax.numpy as jnp
    step = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x), jnp.ones(10_000))[0])
    found = None
    while found is None:  # to be slow to begin is idle, too
        try:
            jax.block_until_ready(step(1))
            began = time.monotonic()
            jax.block_until_ready(step(1000))
            found = float(step(int(1000 * 7 / (time.monotonic() - began))))
        except jax.errors.JaxRuntimeError as error:
            assert "released: idle" in str(error), error
    say("kept", value=found)
"""


def _state_of(tenant: str) -> str:
    (one,) = status()["tenants"]
    assert one["name"] == tenant
    return str(one["state"])


def test_idle_warned_released_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_IDLE_RELEASE_S", "4")
    monkeypatch.setenv("SPS_IDLE_WARNING_S", "1")
    with embedded(1), program(IDLE) as idle:
        name = idle.expect("computes")["name"]
        wait_until("the tenant to be idle", lambda: _state_of(name) == "idle")
        assert status()["slices"][0]["tenant"] is None
        idle.tell("work")
        lost = idle.expect("lost")["error"]
        assert "DATA_LOSS" in lost
        assert "released: idle for " in lost
        back = idle.expect("back")
        assert back["y"] == [1.0] * 4
        kinds = back["kinds"]
        assert kinds.index("tenant.idling") < kinds.index("slice.unplaced")
        assert kinds.index("slice.unplaced") < kinds.index("tenant.idled")
        assert idle.wait() == 0
        said = "".join(idle.stderr)
        assert "its slices will be taken back in" in said
        assert "it gets others when it computes again" in said
        wait_until("the slice to be free", nothing_left)


def test_a_long_program_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_IDLE_RELEASE_S", "2")
    with embedded(1), program(LONG) as busy:
        assert busy.expect("kept")["value"] < 1
        assert busy.wait() == 0
        wait_until("the slice to be free", nothing_left)
