"""Functions that XLA calls while it compiles: refused in strict mode, and at a connection's end."""

from __future__ import annotations

import pytest

from harness.layers.thorough import thorough
from shared_pathways_service.jax_client import ProxyTarget
from tests.jax_client.conftest import PRELUDE, Proxies, run_program

ATTACHING = "attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))\n"
STRICTLY = ATTACHING.replace("argv[1]", "argv[1], strict=True")
PROGRAMS = """
import threading
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec as P

whole = NamedSharding(jax.make_mesh((4,), ("x",)), P("x"))
x = jax.device_put(np.arange(8, dtype=np.float32), whole)

def inspecting(note):
    def program(x):
        jax.debug.inspect_array_sharding(x * 2, callback=note)
        return x.sum()
    return jax.jit(program)

def partitioning(note):
    @custom_partitioning
    def double(x):
        return x * 2
    def partition(mesh, args, result):
        note(result)
        return mesh, lambda x: x * 2, result.sharding, (args[0].sharding,)
    def infer(mesh, args, result):
        return args[0].sharding
    double.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule="i -> i")
    return jax.jit(double)

def error_of(function):
    try:
        function()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError("it did not fail")
"""

REFUSED = """
never = []
for program, words in (
    (inspecting, ("'InspectSharding'", "inspect_array_sharding", "look at its .sharding")),
    (partitioning, ("'CustomSPMDPartitioning'", "custom_partitioning", "jax.shard_map")),
):
    told = error_of(lambda: program(never.append)(x))
    assert told.startswith("UNIMPLEMENTED: a proxy for cpu does not run custom call"), told
    assert all(word in told for word in words), told
assert not never
# Programs without such functions run, and so do the functions outside of a jit.
assert float(jax.jit(lambda x: x.sum())(x)) == 28
jax.debug.inspect_array_sharding(x, callback=never.append)
assert [sharding.spec for sharding in never] == [P("x")]
"""


def test_strict_mode_refuses_functions_that_xla_calls(proxies: Proxies) -> None:
    run_program(
        PRELUDE + STRICTLY + PROGRAMS + REFUSED + "attachment.detach()\n", proxies[0].address
    )


@pytest.mark.parametrize("strict", [True, False])
def test_strict_mode_by_the_environment_alone(proxies: Proxies, strict: bool) -> None:
    target = ProxyTarget(address=proxies[0].address, strict=strict)
    assert target.environment["SPS_STRICT"] == ("1" if strict else None)
    served = """
seen = []
assert float(inspecting(seen.append)(x)) == 28
assert partitioning(seen.append)(x).tolist() == (np.arange(8) * 2).tolist()
assert len(seen) == 2
"""
    # (A program of its own file: the plug-in attaches it.)
    run_program(PROGRAMS + (REFUSED if strict else served), env=target.environment)


def test_a_buffer_callback_is_refused_with_what_to_do(proxies: Proxies) -> None:
    run_program(
        PRELUDE
        + ATTACHING
        + PROGRAMS
        + """
from jax.experimental.buffer_callback import buffer_callback

never = []
call = buffer_callback(lambda *_: never.append(1), jax.ShapeDtypeStruct((3,), np.float32))
told = error_of(lambda: jax.jit(call)(jnp.ones(3)).block_until_ready())
assert told.startswith("UNIMPLEMENTED: a proxy for cpu does not run custom call"), told
for word in ("'xla_buffer_python_cpu_callback'", "jax.experimental.buffer_callback",
             "Instead: jax.pure_callback or io_callback"):
    assert word in told, (word, told)
assert not never and float(jnp.ones(3).sum()) == 3
attachment.detach()
""",
        proxies[0].address,
    )


#: How the connection is ended while XLA waits for the function, which `note` is.
WITHIN_THE_FUNCTION = """
note = lambda _: attachment.detach()
told = error_of(lambda: PROGRAM(note)(x))
"""
ON_ANOTHER_THREAD = """
called, goes_on = threading.Event(), threading.Event()
def note(_):
    called.set()
    assert goes_on.wait(deadline(60))
def end():
    assert called.wait(deadline(60))
    attachment.detach()
    goes_on.set()  # (It waits for no function.)
thread = threading.Thread(target=end)
thread.start()
told = error_of(lambda: PROGRAM(note)(x))
thread.join()
"""
ON_THE_MAIN_THREAD = """
called, goes_on, errors = threading.Event(), threading.Event(), []
def note(_):
    called.set()
    assert goes_on.wait(deadline(60))
thread = threading.Thread(target=lambda: errors.append(error_of(lambda: PROGRAM(note)(x))))
thread.start()
assert called.wait(deadline(60))
attachment.detach()
goes_on.set()
thread.join()
[told] = errors
"""
ENDED = """
assert told.startswith("UNAVAILABLE: a callback was not answered"), told
# JAX is on this machine's CPU again, and nothing of the connection is left.
assert jax.devices()[0].platform == "cpu" and float(jnp.ones(3).sum()) == 3
wait_until("no threads", lambda: not any(t.name.startswith("sps-") for t in threading.enumerate()))
"""


@pytest.mark.race
@pytest.mark.parametrize("program", [*thorough("inspecting"), "partitioning"])
@pytest.mark.parametrize(
    "how",
    [WITHIN_THE_FUNCTION, ON_ANOTHER_THREAD, ON_THE_MAIN_THREAD],
    ids=["within the function", "on another thread", "on the main thread"],
)
def test_the_end_of_a_connection_ends_a_compilation_that_waits_for_a_function(
    proxies: Proxies, program: str, how: str
) -> None:
    source = PRELUDE + ATTACHING + PROGRAMS + how.replace("PROGRAM", program) + ENDED
    run_program(source, proxies[0].address)
    # The proxy compiles and runs the next client's programs.
    run_program(
        PRELUDE
        + ATTACHING
        + PROGRAMS
        + "assert float(inspecting(lambda _: None)(x)) == 28\nattachment.detach()\n",
        proxies[0].address,
    )
