"""The error of a callback that the program catches is written as often as on the local CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from harness.embedded import DEADLINE_S, embedded, eventually, nothing_left
from harness.layers.thorough import thorough
from harness.processes import REPOSITORY
from tests.e2e.sps_run import run

pytestmark = pytest.mark.race

KINDS = ("debug", "ordered", "io", "pure")
#: Catches an error of each kind, waits for what is left of it or does not, and ends.
CATCHES = """
import sys
import jax, jax.numpy as jnp
from jax.experimental import io_callback

def failing(text):
    def fail(*_):
        raise ValueError(text)
    return fail

def catch_all():
    like = jax.ShapeDtypeStruct((), jnp.float32)
    programs = {
        "debug": lambda x: (jax.debug.callback(failing("of debug"), x), x)[1],
        "ordered": lambda x: (jax.debug.callback(failing("of ordered"), x, ordered=True), x)[1],
        "io": lambda x: io_callback(failing("of io"), like, x),
        "pure": lambda x: jax.pure_callback(failing("of pure"), like, x),
    }
    for kind, program in programs.items():
        try:
            jax.jit(program)(jnp.float32(1)).block_until_ready()
            BARRIER
        except jax.errors.JaxRuntimeError as error:
            assert "of " + kind in str(error), error
            print("caught", kind, flush=True)
    print(jax.default_backend())
"""
#: `sps run`, or this machine's CPU.
UNCONNECTED = CATCHES + "\ncatch_all()\n"
CONNECTED = (
    CATCHES
    + """
from shared_pathways_service import isc_pathways
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1})
connection.start()
catch_all()
ENDING
"""
)
#: (Without one, the end meets more that nobody has waited for.)
BARRIERS = (*thorough("jax.effects_barrier()"), "pass")
ENDINGS = ("connection.close()", "pass")
#: What the CPU prints of the errors that are caught.
CAUGHT = "".join(f"caught {kind}\n" for kind in KINDS)


def written(err: str) -> Mapping[str, int]:
    return {kind: err.count(f"ValueError: of {kind}") for kind in KINDS}


def on_python(source: str, platform: str | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=REPOSITORY,
        env={**os.environ, **({"JAX_PLATFORMS": platform} if platform else {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("barrier", BARRIERS)
def test_caught_errors_of_callbacks_are_not_written_again_at_the_end(barrier: str) -> None:
    unconnected = UNCONNECTED.replace("BARRIER", barrier)
    code, out, err = on_python(unconnected, "cpu")
    assert (code, out) == (0, f"{CAUGHT}cpu\n"), err
    local = written(err)
    assert local == dict.fromkeys(KINDS, 1), err

    with embedded(1):
        for ending in ENDINGS:
            source = CONNECTED.replace("BARRIER", barrier).replace("ENDING", ending)
            code, out, err = on_python(source)
            assert (code, out) == (0, f"{CAUGHT}proxy\n"), (ending, err)
            assert written(err) == local, (ending, err)
            eventually(nothing_left, "the connection to have ended")

        code, out, err = run("--slices=tpuv6e:2x2=1", "--", sys.executable, "-c", unconnected)
        assert (code, out) == (0, f"{CAUGHT}proxy\n"), err
        assert written(err) == local, err
