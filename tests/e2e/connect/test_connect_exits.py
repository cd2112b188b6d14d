"""The program's own exit code, however it ends, and nothing left behind it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.embedded import embedded, eventually, nothing_left
from harness.fork_server import client
from harness.programs import program

pytestmark = pytest.mark.race

BEGIN = """
import time
import jax, jax.numpy as jnp
from jax import lax
def forever(x):
    return lax.while_loop(lambda c: c[0] < 1e30, lambda c: (c[0] + 1, c[1] * 0.999), (0.0, x))[1]
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1})
"""
BLOCK = BEGIN + "with connection:\n    "
OPEN = BEGIN + "connection.start(); "
SLEEP = "say('connected'); wait_for_signal()"
FETCH = "x = jax.jit(forever)(jnp.ones(4)); say('connected'); x.block_until_ready()"

#: Interrupted while it connects, a program has nothing of it left, and can connect again.
INTERRUPTED = """
import signal, jax.numpy as jnp
for kind in ("connect.create", "connect.start", "connect.place"):
    def interrupt(event, kind=kind):
        if event.kind == kind:
            os.kill(os.getpid(), signal.SIGINT)
    try:
        isc_pathways.connect(on_event=interrupt).start()
        raise AssertionError(f"no interrupt at {kind}")
    except KeyboardInterrupt:
        pass
with isc_pathways.connect() as connection:
    assert float(jnp.arange(4.0).sum()) == 6.0
    say("connected")
"""

ENDS = {
    "raise": (BLOCK + "say('connected'); raise ValueError('mine')", None, 1),
    "sys.exit": (BLOCK + "say('connected'); sys.exit(7)", None, 7),
    "SIGINT": (BLOCK + SLEEP, signal.SIGINT, -signal.SIGINT),
    "SIGTERM": (BLOCK + SLEEP, signal.SIGTERM, -signal.SIGTERM),
    "SIGINT in a fetch": (BLOCK + FETCH, signal.SIGINT, -signal.SIGINT),
    "SIGTERM in a fetch": (BLOCK + FETCH, signal.SIGTERM, -signal.SIGTERM),
    "never closed": (OPEN + "say('connected')", None, 0),
    "never closed, sys.exit": (OPEN + "say('connected'); sys.exit(7)", None, 7),
    "never closed, SIGINT in a fetch": (OPEN + FETCH, signal.SIGINT, -signal.SIGINT),
    "interrupted while connecting": (INTERRUPTED, None, 0),
}
#: Their interpreters end in the middle of a computation, and how that goes may depend on how they
#: began: these are started as by a user. The others are forks of an interpreter.
ANEW = ("SIGTERM in a fetch", "never closed, SIGINT in a fetch")
CRASHES = ("terminate called", "core dumped", "Fatal Python", "exception not rethrown")


def end(name: str) -> None:
    source, number, code = ENDS[name]
    with program(source) as running:
        running.expect("connected")
        if number is not None:
            running.signal(number)
        assert running.wait() == code, (name, running.stderr)
        text = "".join(running.stderr)
        assert not any(word in text for word in CRASHES), (name, text)
        if "raise" in name:
            assert "ValueError: mine" in text


def end_each(names: Sequence[str]) -> None:
    # Two at a time: as many as there are slices.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(end, names))


def test_exit_codes() -> None:
    with embedded(2, 0, "--standby_proxies=2"):
        end_each([name for name in ENDS if name not in ANEW])
        # (The service runs already, and its proxies may be forks.)
        with client.paused():
            end_each(ANEW)
        eventually(nothing_left, "all proxies to be gone")


@pytest.mark.thorough
@pytest.mark.real_starts
def test_exit_codes_of_programs_and_a_service_that_are_all_started_anew() -> None:
    with embedded(2, 0, "--standby_proxies=2"):
        end_each([*ENDS])
        eventually(nothing_left, "all proxies to be gone")
