"""Python callbacks through connect() and `sps run`: in cells, interrupted, killed, long out."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.embedded import embedded, eventually, nothing_left
from harness.programs import program, sps, sps_json

pytestmark = pytest.mark.race

BEGIN = """
import contextlib, io, time
import jax, jax.numpy as jnp, numpy as np
def waits(x):
    say("called")
    time.sleep(600)
    return np.asarray(x)
def out(x):
    return jax.pure_callback(waits, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
"""
CONNECTED = BEGIN + (
    "with isc_pathways.connect(expected_tpu_instances={'tpuv6e:2x2': 1}, **OPTIONS) as c:\n    "
)

PRINTS = """
seen = io.StringIO()
with contextlib.redirect_stdout(seen):
    jax.jit(lambda x: jax.debug.print("x is {}", x))(jnp.arange(2)); jax.effects_barrier()
say("printed", text=seen.getvalue())
""".strip().replace("\n", "\n    ")

#: XLA calls the function while it compiles.
INSPECTS = """
from jax.sharding import NamedSharding, PartitionSpec as P
whole = NamedSharding(jax.make_mesh((4,), ("x",)), P("x"))
seen = []
def inspected(x):
    jax.debug.inspect_array_sharding(x * 2, callback=seen.append)
    return x.sum()
total = float(jax.jit(inspected)(jax.device_put(np.arange(8.0, dtype=np.float32), whole)))
say("inspected", total=total, specs=[str(sharding.spec) for sharding in seen])
""".strip().replace("\n", "\n    ")

#: XLA waits for the function, which does not return.
COMPILES = """
from jax.sharding import NamedSharding, PartitionSpec as P
whole = NamedSharding(jax.make_mesh((4,), ("x",)), P("x"))
def inspected(x):
    jax.debug.inspect_array_sharding(x * 2, callback=waits)
    return x.sum()
jax.jit(inspected)(jax.device_put(np.arange(8.0, dtype=np.float32), whole))
""".strip().replace("\n", "\n    ")

#: The main thread waits for the callback, is interrupted, and goes on.
INTERRUPTED = """
import os
# (The end of the process waits for another call.)
os.environ["SPS_PATIENCE"] = "0.05"
try:
    # (The signal may come while the program is still begun.)
    jax.jit(out)(jnp.ones(4)).block_until_ready()
except KeyboardInterrupt:
    say("interrupted", other=float(jnp.arange(4.0).sum()))
""".strip().replace("\n", "\n    ")


def connected(block: str, options: str = "{}") -> str:
    return CONNECTED.replace("OPTIONS", options) + block


@pytest.mark.thorough
def test_callbacks_of_connected_programs() -> None:
    # One after the other, on one service: but for `sps run`, each finds all slices free.
    with embedded(2):
        prints("{}")
        prints("{'local_devices': False}")
        inspects()
        is_interrupted()
        is_killed_while_its_callback_is_out()
        is_killed_while_xla_waits_for_its_function()


def prints(options: str) -> None:
    with program(connected(PRINTS, options)) as running:
        assert running.expect("printed")["text"] == "x is [0 1]\n", options
        assert running.wait() == 0
    eventually(nothing_left, "the connection to have ended")


def inspects() -> None:
    with program(connected(INSPECTS)) as running:
        told = running.expect("inspected")
        assert (told["total"], told["specs"]) == (28, ["P('x',)"])
        assert running.wait() == 0
    eventually(nothing_left, "the connection to have ended")


def is_interrupted() -> None:
    """Ctrl-C; other programs go on, and the end of the connection waits for no callback."""
    with program(connected(INTERRUPTED)) as running:
        running.expect("called")
        running.signal(signal.SIGINT)
        assert running.expect("interrupted")["other"] == 6
        assert running.wait() == 0, running.stderr
    eventually(nothing_left, "the connection to have ended")


def is_killed_while_its_callback_is_out() -> None:
    """It is named while it is out; and the slice is free once its client is gone."""
    with program(connected("jax.jit(out)(jnp.ones(4)).block_until_ready()")) as running:
        running.expect("called")
        # (On the other slice, until it is out for long.)
        sps_run_prints()
        sps_run_is_strict()
        eventually(lambda: late() == ["jit_out"], "the callback to be named")
        # (A proxy that is busy may not answer in time: then it has no counters.)
        [call] = eventually(lambda: sps_json("status")["late_callbacks"], "the callback in JSON")
        assert (call["program"], call["function"]) == ("jit_out", "waits")
        assert call["seconds"] >= 10
        wanted = rf"{call['connection']}: program jit_out has waited \d+ s for its callback waits "
        eventually(lambda: re.search(wanted, sps("status").stdout), "the line about the callback")
        running.signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    eventually(nothing_left, "the slice to be free")


def is_killed_while_xla_waits_for_its_function() -> None:
    """The slice is free once the client is gone, and the next one computes on it."""
    with program(connected(COMPILES)) as running:
        running.expect("called")
        assert not nothing_left()
        running.signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    eventually(nothing_left, "the slice to be free")
    inspects()


def late() -> list[str]:
    """Programs that wait for a callback for long, as `sps status` names them."""
    told = sps("status", "--openmetrics").stdout
    return re.findall(r'sps_proxy_late_callback_seconds{.*program="(\w+)"', told)


def sps_run_prints() -> None:
    """JAX waits at the end of the process, where Python begins no thread any more."""
    body = "lambda i, x: (jax.debug.print('x is {}', x, ordered=True), x + i)[1]"
    source = f"import jax; jax.jit(lambda x: jax.lax.fori_loop(0, 20, {body}, x))(3)"
    done = sps("run", "--slices", "tpuv6e:2x2=1", "--", sys.executable, "-c", source)
    wanted = [f"x is {3 + i * (i - 1) // 2}" for i in range(20)]
    assert [line for line in done.stdout.splitlines() if line.startswith("x is")] == wanted


def sps_run_is_strict() -> None:
    source = "import jax; jax.jit(lambda x: jax.debug.print('x is {}', x))(3)"
    command = ("--slices", "tpuv6e:2x2=1", "--", sys.executable, "-c", source)
    done = sps("run", "--strict", *command, check=False)
    assert "Unsupported host callback type" in done.stderr
    assert "strict mode" in done.stderr
    assert done.returncode == 1


CELLS = (
    """
import jax, jax.numpy as jnp
from shared_pathways_service import isc_pathways
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
show = jax.jit(lambda x: jax.debug.print("x is {}", x))
show(1); jax.effects_barrier()
""",
    "show(2); jax.effects_barrier()",
    "show(3); jax.effects_barrier()",
    "connection.close()",
)


# The kernel's messages pass through sockets that belong to the client's event loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_what_a_callback_prints_is_in_the_cell_that_began_it(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # (Here, as the import takes two seconds of each collection.)
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(own_directories / name.lower()))
    shown = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client = nbclient.NotebookClient(
        shown,
        timeout=int(deadline(400.0)),
        iopub_timeout=int(deadline(400.0)),  # after it, what a cell prints is dropped
        kernel_name="python3",
        resources={"metadata": {"path": str(own_directories)}},
    )
    with embedded(1):
        client.execute()
        assert nothing_left()
    printed = [
        "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
        for cell in shown.cells
    ]
    assert [p.strip().splitlines()[-1:] for p in printed[:3]] == [
        ["x is 1"],
        ["x is 2"],
        ["x is 3"],
    ]
