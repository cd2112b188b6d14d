"""Connecting again and again in one process: nothing is left over, and JAX is as it was."""

from __future__ import annotations

import pytest

from harness.deadlines import deadline
from harness.embedded import embedded, eventually, nothing_left
from harness.fork_server import client as fork_client
from harness.programs import program

SOURCE = """
import gc, warnings
import jax, jax.numpy as jnp, numpy as np
import psutil

before = jnp.arange(4.0)
pinned = jax.device_put(jnp.ones(4), jax.devices("cpu")[0])
double = jax.jit(lambda x: x * 2)
settings = {k: v for k, v in jax.config.values.items()}
environment = dict(os.environ)
me = psutil.Process()

def usage():
    gc.collect()
    return {
        "threads": sorted(t.name for t in threading.enumerate()),
        "native_threads": me.num_threads(),
        "descriptors": me.num_fds(),
        "sockets": len(me.net_connections("all")),
        "children": [c.pid for c in me.children(recursive=True)],
    }

def work(n):
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
        assert len(connection.devices) == 8, connection.devices
        assert sorted({d.slice_index for d in connection.devices}) == [0, 1]
        assert [s.state for s in connection.slices] == ["placed", "placed"]
        assert os.environ["JAX_PLATFORMS"] == "proxy,cpu"
        assert jax.config.values["jax_backend_target"] == connection.address
        transport, _, address = os.environ["JAX_BACKEND_TARGET"].partition("://")
        assert (transport, f"grpc://{address}") == ("sps-jax-plugin", connection.address)
        assert connection.total_chips == 8
        assert float(double(jnp.arange(8.0) + n).sum()) == 2 * (28 + 8 * n)
    after = jnp.arange(4.0)
    assert [d.platform for d in jax.devices()] == ["cpu"]
    np.testing.assert_array_equal(np.asarray(before + after + pinned + double(before)),
                                  np.arange(4.0) * 4 + 1)
    assert dict(os.environ) == environment
    changed = {k for k, v in jax.config.values.items() if settings[k] != v}
    assert not changed, changed

work(0)
say("first", **usage())
for n in range(1, CYCLES):
    work(n)
say("last", **usage())
"""


@pytest.mark.parametrize(
    "cycles", [4, pytest.param(20, marks=[pytest.mark.thorough, pytest.mark.real_starts])]
)
def test_connections_of_one_process_leave_nothing(cycles: int) -> None:
    source = SOURCE.replace("CYCLES", str(cycles))
    # (Its own threads and descriptors are counted, those of the service are not.)
    with embedded(2), fork_client.paused(), program(source) as client:
        first = client.expect("first")
        last = client.expect("last", timeout=deadline(240.0))
        assert client.wait() == 0
        assert first["children"] == last["children"] == []
        assert last["threads"] == first["threads"]
        assert last["descriptors"] <= first["descriptors"]
        assert last["sockets"] == first["sockets"]
        assert last["native_threads"] <= first["native_threads"]
        eventually(nothing_left, "the last proxy to be gone")
