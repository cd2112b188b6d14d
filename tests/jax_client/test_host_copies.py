"""Arrays of a proxy as memory of this process, and the other way round, in programs of users."""

from __future__ import annotations

import pytest

from tests.jax_client.conftest import PRELUDE, Proxies, run_program


@pytest.mark.parametrize("local_devices", [True, False])
def test_memory_is_exchanged_also_without_local_devices_and_as_before_afterwards(
    proxies: Proxies, local_devices: bool
) -> None:
    run_program(
        PRELUDE
        + f"""
import jax, jax.numpy as jnp
from jax.dlpack import from_dlpack  # before anything of JAX is replaced
at = jax.devices()[0]
target = ProxyTarget(address=sys.argv[1], local_devices={local_devices})
attachment = attach(target, timeout=deadline(60))

values = np.arange(8.0)  # of 64 bits, which JAX makes 32 of
for made in (from_dlpack(values), jnp.from_dlpack(values)):
    assert made.devices() == {{jax.devices()[0]}}, made.devices()
    assert made.dtype == jnp.float32 and made.tolist() == values.tolist()
back = np.from_dlpack(made)
assert back.tolist() == values.tolist() and not back.flags.writeable
assert np.from_dlpack(jnp.from_dlpack(made)).tolist() == values.tolist()
assert not hasattr(made, "__cuda_array_interface__")
assert jax.devices()[0].memory_stats() is None
with jax.enable_x64(True):
    wide = jnp.arange(3.0)
assert np.from_dlpack(wide).dtype == np.float64
if {local_devices}:
    # What this machine's devices have, and are asked for, stays here.
    here = jax.devices("cpu")[0]
    mine = jax.device_put(values, here)
    assert memoryview(mine).nbytes == mine.nbytes
    assert np.shares_memory(np.from_dlpack(mine), np.asarray(mine))
    assert jnp.from_dlpack(values, device=here).devices() == {{here}}
    with jax.default_device(here):
        assert jnp.from_dlpack(values).devices() == {{here}}
held = made, wide
attachment.detach()

again = from_dlpack(values)
assert again.devices() == {{at}}
assert again.unsafe_buffer_pointer() and np.from_dlpack(again).tolist() == values.tolist()
""",
        proxies[0].address,
    )


AS_OF_TPUS = """
from shared_pathways_service.jax_client.plugin import local
local.is_proxied_cpu = lambda device: False
"""


@pytest.mark.parametrize(
    ("before", "strict"), [(AS_OF_TPUS, False), ("", True)], ids=["TPUs", "strict"]
)
def test_arrays_of_tpus_and_in_strict_mode_are_left_to_jax(
    proxies: Proxies, before: str, strict: bool
) -> None:
    run_program(
        PRELUDE
        + before
        + f"STRICT = {strict}"
        + """
attachment = attach(ProxyTarget(address=sys.argv[1], strict=STRICT), timeout=deadline(60))
import jax, jax.numpy as jnp
x = jnp.arange(8.0)

def guarded():
    with jax.transfer_guard("disallow"):
        np.asarray(x)

for function, text in (
    (x.unsafe_buffer_pointer, "PjRt-compatible backend only"),
    (lambda: np.from_dlpack(x), "PjRt-compatible backend only"),
    (lambda: memoryview(x), "Only local arrays"),
    (guarded, "Disallowed device-to-host transfer"),
    (jax.devices()[0].memory_stats, "MemoryStats is only supported"),
):
    try:
        function()
    except (jax.errors.JaxRuntimeError, BufferError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
assert not hasattr(x, "__cuda_array_interface__")
values = np.arange(8, dtype=np.float32)
assert jnp.from_dlpack(values).devices() == {jax.devices("cpu")[0]}
attachment.detach()

# Without a CPU of its own JAX can place it only there.
target = ProxyTarget(address=sys.argv[1], local_devices=False, strict=STRICT)
second = attach(target, timeout=deadline(60))
assert jnp.from_dlpack(values).devices() == {jax.devices()[0]}
second.detach()
""",
        proxies[0].address,
    )
