"""A connection that does nothing is warned, loses its slices, and works again when it is used."""

from __future__ import annotations

import pytest

from harness.embedded import embedded, nothing_left, status
from harness.programs import program, wait_until

pytestmark = pytest.mark.race

IDLE = """
import queue
heard = queue.SimpleQueue()
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1},
                          on_event=heard.put) as connection:
    import jax, jax.numpy as jnp
    step = jax.jit(lambda x: x + 1)
    x = jax.block_until_ready(step(jnp.zeros(4)))
    say("computes", name=connection.proxy_job_name)
    kinds = []
    while "tenant.idled" not in kinds:
        kinds.append(heard.get(timeout=150).kind)
    say("idle", kinds=kinds)
    wait_for("work")
    try:
        x.tolist()
    except jax.errors.JaxRuntimeError as error:
        say("lost", error=str(error))
    while (kind := heard.get(timeout=150).kind) != "slice.placed":
        kinds.append(kind)
    y = None
    while y is None:  # the proxy hears of a slice a moment before or after its client
        try:
            y = step(jnp.zeros(4)).tolist()
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
    say("back", y=y)
"""
#: One program that runs for several times as long as a tenant may be idle.
LONG = """
import time
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax, jax.numpy as jnp
    step = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x), jnp.ones(10_000)))
    found = None
    while found is None:  # to be slow to begin is idle, too
        try:
            jax.block_until_ready(step(1))
            began = time.monotonic()
            jax.block_until_ready(step(1000))
            found = jax.block_until_ready(step(int(1000 * 7 / (time.monotonic() - began))))
        except jax.errors.JaxRuntimeError as error:
            assert "released: idle" in str(error), error
    say("kept", value=float(found[0]))
"""


def test_idle_warned_released_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_IDLE_RELEASE_S", "4")
    monkeypatch.setenv("SPS_IDLE_WARNING_S", "1")
    with embedded(1), program(IDLE) as idle:
        name = idle.expect("computes")["name"]
        kinds = idle.expect("idle")["kinds"]
        assert kinds.index("tenant.idling") < kinds.index("slice.unplaced")
        assert [(one["name"], one["state"]) for one in status()["tenants"]] == [(name, "idle")]
        assert status()["slices"][0]["tenant"] is None
        idle.tell("work")
        lost = idle.expect("lost")["error"]
        assert "DATA_LOSS" in lost
        assert "released: idle for " in lost
        assert idle.expect("back")["y"] == [1.0] * 4
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
