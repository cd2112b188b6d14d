"""jax.debug.print and jax.profiler on a proxy: they work, or the error says what works instead."""

from __future__ import annotations

from pathlib import Path

from shared_pathways_service.jax_client import ProxyTarget, standalone
from tests.jax_client.conftest import PRELUDE, Proxies, run_program

CALLING_BACK = """
import jax, jax.numpy as jnp
from jax.experimental import io_callback
like = jax.ShapeDtypeStruct((), jnp.float32)

def printing(x):
    jax.debug.print("x is {x}", x=x)
    return x + 1

PROGRAMS = {
    "print": printing,
    "callback": lambda x: (jax.debug.callback(print, x), x)[1],
    "pure": lambda x: jax.pure_callback(lambda a: a, like, x),
    "io": lambda x: io_callback(lambda a: a, like, x),
}

def refused():
    for name, program in PROGRAMS.items():
        try:
            jax.jit(program)(jnp.float32(1)).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            first, explanation = str(error).split("\\n")
            assert first == "UNIMPLEMENTED: Unsupported host callback type", (name, first)
            for word in ("jax.debug.print", "local_devices=False", "jax.disable_jit()", "outside"):
                assert word in explanation, explanation
        else:
            raise AssertionError(f"{name} works")

def work():
    for name, program in PROGRAMS.items():
        assert jax.jit(program)(jnp.float32(1)).block_until_ready() >= 1, name
    jax.effects_barrier()

work() if WORKS else refused()
# Nothing is broken by it, and other errors are JAX's own.
assert jax.jit(lambda x: x * 2)(jnp.float32(2)) == 4
try:
    jax.jit(lambda x: x @ x)(jnp.ones((2, 3)))
except TypeError:
    pass
"""


ATTACHING = "attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))\n"
LEAVING = """
attachment.detach()
jax.jit(printing)(7.0).block_until_ready()
jax.effects_barrier()
"""
#: Of an environment that has this package or not.
WITH_GRPC = """
import importlib.util
WORKS = importlib.util.find_spec("grpc") is not None
"""
#: Has this process take the proxy for one of another project.
FOREIGN = """
from shared_pathways_service.jax_client.plugin import callbacks
callbacks.OURS = "another project"
"""


def test_callbacks_are_called_in_this_process(proxies: Proxies) -> None:
    program = PRELUDE + ATTACHING + "WORKS = True\n" + CALLING_BACK + LEAVING
    done = run_program(program, proxies[0].address)
    # On the CPU, afterwards, all is as before.
    assert sorted(done.stdout.splitlines()) == ["1.0", "x is 1.0", "x is 7.0"]


def test_on_other_proxies_callbacks_say_why_not_and_what_instead(proxies: Proxies) -> None:
    program = PRELUDE + FOREIGN + ATTACHING + "WORKS = False\n" + CALLING_BACK + LEAVING
    done = run_program(program, proxies[0].address)
    assert done.stdout == "x is 7.0\n"


def test_in_strict_mode_callbacks_are_refused_as_on_googles_proxies(proxies: Proxies) -> None:
    strict = ATTACHING.replace("argv[1]", "argv[1], strict=True")
    reason = """
try:
    jax.jit(printing)(7.0)
except jax.errors.JaxRuntimeError as error:
    assert "strict mode" in str(error), error
assert os.environ["SPS_STRICT"] == "1"
"""
    program = PRELUDE + strict + "WORKS = False\n" + CALLING_BACK + reason + LEAVING
    done = run_program(program + 'assert "SPS_STRICT" not in os.environ\n', proxies[0].address)
    assert done.stdout == "x is 7.0\n"


LATE_PRINTS = """
import jax, jax.numpy as jnp
from shared_pathways_service.jax_client.plugin import callback_barrier

def show(x):
    time.sleep(0.1)
    print("x is", x, flush=True)

body = lambda i, x: (jax.debug.callback(show, i), x)[1]
program = jax.jit(lambda x: jax.lax.fori_loop(0, 10, body, x))
"""


def test_what_was_not_printed_when_the_connection_is_left_is_printed_first(
    proxies: Proxies,
) -> None:
    leaving = "program(1.0)\nattachment.detach()\nprint('left', flush=True)\n"
    done = run_program(PRELUDE + ATTACHING + LATE_PRINTS + leaving, proxies[0].address)
    assert done.stdout.splitlines() == [*(f"x is {i}" for i in range(10)), "left"]
    # At the end of the process, where Python begins no thread.
    done = run_program(PRELUDE + ATTACHING + LATE_PRINTS + "program(1.0)\n", proxies[0].address)
    assert done.stdout.splitlines() == [f"x is {i}" for i in range(10)]


def test_a_function_that_does_not_return_holds_up_the_end_of_a_connection_for_a_while(
    proxies: Proxies,
) -> None:
    stuck = """
import os
os.environ["SPS_PATIENCE"] = "0.05"
returns = threading.Event()
program = jax.jit(lambda x: (jax.debug.callback(lambda: returns.wait(deadline(60))), x)[1])
program(1.0)
attachment.detach()
returns.set()
"""
    done = run_program(PRELUDE + ATTACHING + LATE_PRINTS + stuck, proxies[0].address)
    assert "their output is lost" in done.stderr


def test_a_program_on_a_proxy_by_its_environment_alone_calls_back_where_it_has_grpcio(
    proxies: Proxies, foreign_python: str, own_directories: Path
) -> None:
    proxy = proxies[1]
    target = ProxyTarget(address=proxy.address, token=proxy.token, token_file=proxy.token_file)
    environment = {**target.environment, "PYTHONPATH": str(standalone.place(own_directories))}
    program = WITH_GRPC + CALLING_BACK
    run_program(program, env=environment, cwd=own_directories, python=foreign_python)


def test_what_the_error_recommends_works(proxies: Proxies) -> None:
    done = run_program(
        PRELUDE
        + """
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    jax.debug.print("x is {x}", x=x)
    return x + 1

jax.debug.print("eager {x}", x=jnp.float32(0))
with jax.disable_jit():
    assert step(jnp.float32(1)) == 2
with jax.default_device(jax.devices("cpu")[0]):
    assert step(jnp.float32(2)) == 3
jax.effects_barrier()
assert jax.devices()[0].platform == "proxy" and len(jax.devices()) == 8
attachment.detach()
""",
        proxies[0].address,
    )
    assert sorted(done.stdout.splitlines()) == ["eager 0.0", "x is 1.0", "x is 2.0"]


def test_a_missing_library_of_this_process_is_not_said_to_be_missing_in_a_proxy(
    proxies: Proxies,
) -> None:
    run_program(
        PRELUDE
        + ATTACHING
        + """
attachment.detach()
import jax
assert jax.default_backend() == "cpu"
try:
    jax.jit(lambda x: jax.ffi.ffi_call("missing", x)(x))(np.ones(2))
except jax.errors.JaxRuntimeError as error:
    assert "If the program runs on a proxy: jax.ffi.register_ffi_target" in str(error), error
else:
    raise AssertionError("it ran")
""",
        proxies[0].address,
    )


def test_a_trace_has_what_this_process_asks_of_the_proxy(
    proxies: Proxies, own_directories: Path
) -> None:
    run_program(
        PRELUDE
        + """
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
import glob, gzip, json
import jax, jax.numpy as jnp

with jax.profiler.trace(sys.argv[2]):
    with jax.profiler.StepTraceAnnotation("train", step_num=1):
        jax.jit(lambda x: x @ x)(jnp.ones((8, 8))).block_until_ready()
[trace] = glob.glob(sys.argv[2] + "/**/*.trace.json.gz", recursive=True)
names = {event.get("name") for event in json.load(gzip.open(trace))["traceEvents"]}
assert {"train", "compile", "loaded_executable_execute", "check_value_ready"} <= names, names
attachment.detach()
""",
        proxies[0].address,
        str(own_directories / "trace"),
    )


#: The first call returns while its function waits for it to return; the others wait for theirs.
DISPATCHING = """
import contextvars, threading
import jax, jax.numpy as jnp
has_returned, seen = threading.Event(), []

def wait(x):
    seen.append(bool(has_returned.wait(deadline(20))))

def fail(x):
    raise ValueError("what it says")

x = jnp.float32(1)
jax.jit(lambda x: (jax.debug.callback(wait, x), x)[1])(x)
has_returned.set()
jax.effects_barrier()
assert seen == [True], seen

# Each call has the context in which it was made, as with cells of a notebook.
cell = contextvars.ContextVar("cell")
cells = []
program = jax.jit(lambda x: jax.pure_callback(lambda x: (cells.append(cell.get()), x)[1], x, x))
for number in range(3):
    cell.set(number)
    program(x).block_until_ready()
assert cells == [0, 1, 2], cells

jax.config.update("jax_cpu_enable_async_dispatch", False)
jax.jit(lambda x: (jax.debug.callback(seen.append, x), x)[1])(x)
assert seen == [True, 1], seen
jax.jit(lambda x: jax.debug.callback(seen.append, x, ordered=True))(x)
assert seen == [True, 1, 1], seen
for callback in (jax.debug.callback, lambda f, x: jax.pure_callback(f, x, x)):
    try:
        jax.jit(lambda x: callback(fail, x))(x)
    except jax.errors.JaxRuntimeError as error:
        assert "ValueError: what it says" in str(error), error
    else:
        raise AssertionError("the call does not wait")
# It was raised once.
jax.effects_barrier()

# Later calls of a program without effects wait as well.
def check(x):
    if x < 0:
        raise ValueError("negative")
    return x

program = jax.jit(lambda x: jax.pure_callback(check, x, x))
for value in (1, 2, -1, 3, -2):
    try:
        assert program(jnp.float32(value)) == value > 0
    except jax.errors.JaxRuntimeError as error:
        assert value < 0 and "ValueError: negative" in str(error), error
"""


def test_with_async_dispatch_off_a_call_waits_for_its_callbacks(proxies: Proxies) -> None:
    run_program(PRELUDE + ATTACHING + DISPATCHING, proxies[0].address)
