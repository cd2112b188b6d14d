"""What the operator of the embedded service allows a proxy, as its tenants' programs meet it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from harness.deadlines import wait_until
from harness.embedded import nothing_left
from harness.programs import Program, program, service, sps_json, status

LIMITS = {
    "device_memory_limit_bytes": 20_000_000,
    "host_memory_limit_bytes": 4_000_000,
    "max_handles": 300,
    "max_requests": 50,
    "max_message_bytes": 200_000,
    "max_sessions": 1,
    "trace_s": 60,
    "trace_bytes": 100_000,
}
#: No error: no more requests are read for a while, and a profile ends or has no planes.
WITHOUT_ERROR = {"max_requests", "trace_s", "trace_bytes"}

BEYOND = """
import time
import numpy as np
from harness.deadlines import deadline
from shared_pathways_service.jax_client.refusal import reason_of
from shared_pathways_service.jax_client.target import ProxyTarget
options = json.loads(os.environ["TEST_OPTIONS"])
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, proxy_options=options):
    import jax, jax.numpy as jnp
    small = jax.device_put(np.ones(4))
    held = []
    def many():
        # More than are read at a time, too.
        held.extend(small + n for n in range(500))
        np.asarray(held[-1])
    constant = np.arange(100_000, dtype=np.float32)
    for name, work in {
        "device_memory_limit_bytes": lambda: jnp.ones(8_000_000).block_until_ready(),
        "host_memory_limit_bytes": lambda: np.asarray(jax.device_put(np.ones(1_000_000))),
        "max_handles": many,
        "max_message_bytes": lambda: jax.jit(lambda x: x + constant)(small[0]),
    }.items():
        try:
            work()
        except jax.errors.JaxRuntimeError as error:
            say(name, error=str(error).splitlines()[0])
        held.clear()
        until, value = time.monotonic() + deadline(60), None
        while value is None:
            try:
                value = np.asarray(small + 1).tolist()
            except jax.errors.JaxRuntimeError as error:
                # What failed last still waits for its host buffer, for a moment.
                assert "--max_handles" in str(error) and time.monotonic() < until, error
                time.sleep(0.05)
        assert value == [2.0] * 4
    # Another process of this connection, as far as its being refused: JAX's client only waits.
    target = ProxyTarget(address=os.environ["JAX_BACKEND_TARGET"].partition("://")[2],
                         token=open(os.environ["SPS_TOKEN_FILE"]).read().strip())
    say("max_sessions", error=str(reason_of(target, deadline(60))))
    say("serving")
    wait_for("leave")
"""

ASKED = """
def ask(**limits):
    asked = isc_pathways.ProxyOptions(**limits)
    return isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, proxy_options=asked)
for name, value in json.loads(os.environ["TEST_OPTIONS"]).items():
    try:
        ask(**{name: value + 1}).start()
    except errors.InvalidRequestError as error:
        say(name, field=error.field, value=error.value, expected=error.expected)
with ask(**{name: value - 1 for name, value in json.loads(os.environ["TEST_OPTIONS"]).items()
            if value > 1}):
    say("connected")
    wait_for("leave")
"""


def meet_each(running: Program, limits: Mapping[str, int]) -> None:
    """Expects that the program met each limit, and was told of it."""
    for name in LIMITS:
        if name in WITHOUT_ERROR:
            continue
        error = running.expect(name)["error"]
        assert "RESOURCE_EXHAUSTED" in error
        assert f"(--{name}) is {limits[name]}" in error
    running.expect("serving")


@pytest.mark.race
def test_each_limit_is_the_operators_and_a_tenant_may_lower_it() -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in LIMITS.items()]
    with service("tpuv6e:2x2=1", 0, flags):
        assert status()["service"]["proxy_limits"] == LIMITS
        with program(BEYOND, env={"TEST_OPTIONS": "[]"}) as running:
            meet_each(running, LIMITS)
            [proxy] = sps_json("status")["proxies"]
            assert proxy["limits"] == LIMITS
            running.tell("leave")
            assert running.wait() == 0
        wait_until("the proxy's end", nothing_left)

        with program(ASKED, env={"TEST_OPTIONS": json.dumps(LIMITS)}) as running:
            for name, most in LIMITS.items():
                refused = running.expect(name)
                assert (refused["field"], refused["value"]) == (
                    "proxy_options",
                    f"{name}:{most + 1}",
                )
                assert f"at most {most}," in refused["expected"]
            running.expect("connected")
            [proxy] = sps_json("status")["proxies"]
            lower = {name: most - 1 for name, most in LIMITS.items() if most > 1}
            assert proxy["limits"] == {**LIMITS, **lower}
            running.tell("leave")
            assert running.wait() == 0
        wait_until("the proxy's end", nothing_left)

        lower = {"host_memory_limit_bytes": 3_000_000, "max_handles": 200}
        texts = [f"{name}:{value}" for name, value in lower.items()]
        with program(BEYOND, env={"TEST_OPTIONS": json.dumps(texts)}) as running:
            meet_each(running, {**LIMITS, **lower})
            running.tell("leave")
            assert running.wait() == 0
