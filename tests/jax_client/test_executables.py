"""Programs of a proxy that are serialised, and loaded by another process."""

from __future__ import annotations

from pathlib import Path

from tests.jax_client.conftest import PRELUDE, Proxies, run_program

ATTACHED = (
    PRELUDE
    + """
import json, pickle
from pathlib import Path
import jax, jax.numpy as jnp
from jax.experimental import serialize_executable
from shared_pathways_service.jax_client.plugin import executables
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))

def refused(function, *words):
    try:
        function()
    except jax.errors.JaxRuntimeError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("is not refused")

def serialized(function, *arguments):
    return serialize_executable.serialize(jax.jit(function).lower(*arguments).compile())
"""
)


def test_another_process_loads_a_program(proxies: Proxies, own_directories: Path) -> None:
    path = str(own_directories / "program")
    run_program(
        ATTACHED
        + """
x = jnp.arange(4.0)
kept = serialized(lambda x, y: jnp.sin(x) @ y, x, x)
Path(sys.argv[2]).write_bytes(pickle.dumps(kept))
""",
        proxies[0].address,
        path,
    )
    run_program(
        ATTACHED
        + """
kept = pickle.loads(Path(sys.argv[2]).read_bytes())
x = jnp.arange(4.0)
# On the program's own device, as JAX names all of the client's where it is not told.
loaded = serialize_executable.deserialize_and_load(*kept)
np.testing.assert_allclose(loaded(x, x), np.sin(np.arange(4)) @ np.arange(4), rtol=1e-6)
# What was loaded can be serialised, too.
client = jax.devices()[0].client
program = loaded.runtime_executable().serialize()
devices = loaded.runtime_executable().local_devices()
again = __import__("jaxlib").xla_client.DeviceList(tuple(devices))
assert client.deserialize_executable(program, again).serialize() == program
other = program.replace(jax.lib.__version__.encode(), b"0.0.1")
assert other != program
refused(lambda: client.deserialize_executable(other, again), "jaxlib 0.0.1", "compile it again")
other = program.replace(b'"devices": [0]', b'"devices": [0, 99]')
assert other != program
refused(lambda: client.deserialize_executable(other, again), "devices that do not exist here, [99]")
""",
        proxies[0].address,
        path,
    )


def test_a_program_keeps_the_order_of_its_devices(proxies: Proxies) -> None:
    run_program(
        ATTACHED
        + """
there = jax.devices()
mesh = jax.sharding.Mesh(np.array([*there[:2], *there[:1:-1]]), ("x",))
split = jax.NamedSharding(mesh, jax.P("x"))
x = jax.device_put(jnp.arange(16.0), split)
kept = serialized(jnp.cumsum, x)
expected = np.cumsum(np.arange(16)).tolist()
for named in ({}, {"execution_devices": list(mesh.devices.flat)}):
    loaded = serialize_executable.deserialize_and_load(*kept, **named)
    assert loaded(x).tolist() == expected, named
# On other devices.
pair = jax.NamedSharding(jax.sharding.Mesh(there[:2], ("x",)), jax.P("x"))
few = jax.device_put(jnp.arange(4.0), pair)
kept = jax.jit(jnp.cumsum).lower(few).compile().runtime_executable()
client = there[0].client
devices = __import__("jaxlib").xla_client.DeviceList(tuple(there[2:4]))
loaded = client.deserialize_executable(kept.serialize(), devices)
assert [device.id for device in loaded.local_devices()] == [2, 3]
""",
        proxies[0].address,
    )


def test_programs_that_are_too_old_or_call_back_say_so(proxies: Proxies) -> None:
    run_program(
        ATTACHED
        + """
def printing(x):
    jax.debug.print("{}", x)
    return x + 1

x = jnp.arange(4.0)
client = jax.devices()[0].client
calls_back = jax.jit(printing).lower(x).compile().runtime_executable()
refused(calls_back.serialize, "no Python functions", "jax.export")
refused(lambda: client.serialize_executable(calls_back), "no Python functions")

first, second = (jax.jit(f).lower(x).compile().runtime_executable() for f in (jnp.sin, jnp.cos))
assert first.serialize() != second.serialize()
line, _, data = second.serialize().partition(b"\\n")
size = len(data) - json.loads(line[line.index(b"{"):])["options"]
executables._MOST_BYTES = 3 * size // 2
third = jax.jit(jnp.tan).lower(x).compile().runtime_executable()
third.serialize()
refused(first.serialize, "one of the last")
executables._MOST_BYTES = 1
fourth = jax.jit(jnp.exp).lower(x).compile().runtime_executable()
refused(fourth.serialize, "one of the last")
third.serialize()
""",
        proxies[0].address,
    )
