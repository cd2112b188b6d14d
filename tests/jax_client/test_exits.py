"""A process that ends while JAX is on a proxy ends with its own exit code, and quietly."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import psutil
import pytest

from harness.signals import suspend
from tests.jax_client.conftest import (
    DEADLINE_S,
    PRELUDE,
    Proxies,
    Proxy,
    run_program,
    run_proxy,
    start_program,
)

pytestmark = pytest.mark.race

ATTACHED = (
    PRELUDE
    + """
import jax, jax.numpy as jnp
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), "d"),
                                      jax.sharding.PartitionSpec("d"))
array = jax.device_put(jnp.arange(16.0), sharding)
doubled = jax.jit(lambda x: x * 2)(array)
"""
)
#: What a crash of a process that was about to end anyway looks like.
CRASHES = ("terminate called", "Fatal Python error", "exception not rethrown", "Check failed")


def assert_quiet(stderr: str) -> None:
    assert not [word for word in CRASHES if word in stderr], stderr


@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("threading.Thread(target=doubled.block_until_ready).start(); sys.exit(7)", 7, ""),
    ],
    ids=["raise", "exit"],
)
def test_exit_code_is_the_programs_own(proxies: Proxies, ending: str, code: int, says: str) -> None:
    done = run_program(ATTACHED + ending, proxies[0].address, code=code)
    assert_quiet(done.stderr)
    if says:
        assert done.stderr.rstrip().endswith(says)
    else:
        assert done.stderr == ""


@pytest.fixture
def stopped_proxy(own_directories: Path) -> Iterator[tuple[Proxy, psutil.Process]]:
    """A proxy of the test's own, so that it can be stopped: then nothing is answered."""
    with run_proxy(own_directories, "c", slices=2) as proxy:
        process = psutil.Process(proxy.pid)
        yield proxy, process
        process.resume()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_fetch(
    stopped_proxy: tuple[Proxy, psutil.Process], number: signal.Signals
) -> None:
    proxy, process = stopped_proxy
    source = ATTACHED + (
        "doubled.block_until_ready()\n"
        "print('attached', flush=True); sys.stdin.readline()\n"
        "print('fetching', flush=True); np.asarray(doubled)\n"
        "print('fetched', flush=True)"
    )
    with start_program(source, proxy.address) as program:
        assert program.stdout
        assert program.stdin
        assert program.stdout.readline() == "attached\n"
        suspend(process.pid)
        program.stdin.write("go\n")
        program.stdin.flush()
        assert program.stdout.readline() == "fetching\n"
        wait_until_blocked(program)
        program.send_signal(number)
        out, err = program.communicate(timeout=DEADLINE_S)
    # A shell shows 128 + n for it.
    assert (program.returncode, out) == (-number, "")
    assert_quiet(err)
    assert ("KeyboardInterrupt" in err) == (number is signal.SIGINT)


def wait_until_blocked(program: subprocess.Popen[str]) -> None:
    """Waits until the program's main thread waits for something, and goes on doing so."""
    main = Path(f"/proc/{program.pid}/task/{program.pid}/stat")
    deadline = time.monotonic() + DEADLINE_S
    seen = 0
    while seen < 10:
        assert time.monotonic() < deadline
        with contextlib.suppress(OSError):
            asleep = main.read_text().rpartition(")")[2].split()[0] == "S"
            seen = seen + 1 if asleep else 0
        time.sleep(0.02)


def test_the_proxy_is_gone_before_the_process_ends(own_directories: Path) -> None:
    with run_proxy(own_directories, "d", slices=1) as proxy:
        source = ATTACHED + (
            "print('attached', flush=True); sys.stdin.readline()\n"
            "try:\n"
            "    print(np.asarray(doubled))\n"
            "except jax.errors.JaxRuntimeError as error:\n"
            "    print(str(error).partition(':')[0], flush=True)\n"
            "attachment.detach()\n"
            "print(jnp.arange(3).tolist(), jax.devices()[0].platform)\n"
        )
        with start_program(source, proxy.address) as program:
            assert program.stdout
            assert program.stdout.readline() == "attached\n"
            psutil.Process(proxy.pid).kill()
            out, err = program.communicate("go\n", timeout=DEADLINE_S)
    assert program.returncode == 0, err
    assert out.splitlines()[-1] == "[0, 1, 2] cpu"
    assert out.splitlines()[0] in {"UNAVAILABLE", "CANCELLED"}
    assert_quiet(err)


@pytest.mark.parametrize(
    ("use", "aborts"),
    [
        ("double(array).block_until_ready()", False),
        ("jax.block_until_ready([double(array), double(array)])", False),
        ("np.asarray(array)", False),
        ("jax.jit(lambda x: x * 3)(array)", False),
        ("np.asarray(jax.device_put(np.ones(4)))", False),
        ("double(jax.device_put(np.ones(16, np.float32), sharding)).block_until_ready()", True),
    ],
    ids=["run", "run two", "fetch", "compile", "send", "run on what was sent since"],
)
def test_a_connection_that_broke(own_directories: Path, use: str, *, aborts: bool) -> None:
    # What docs/limits.md says of it.
    with run_proxy(own_directories, "e", slices=2) as proxy:
        source = ATTACHED + (
            "double = jax.jit(lambda x: x * 2)\n"
            "double(array).block_until_ready()\n"
            "print('attached', flush=True); sys.stdin.readline()\n"
            "try:\n"
            "    np.asarray(doubled)\n"
            "except jax.errors.JaxRuntimeError:\n"
            "    print('broken', flush=True)\n"
            "try:\n"
            f"    {use}\n"
            "except jax.errors.JaxRuntimeError as error:\n"
            "    print(str(error).partition(':')[0], flush=True)\n"
            "    (note,) = (n for n in error.__notes__ if 'slices has ended' in n)\n"
            "    assert 'jax.device_get' in note, note\n"
        )
        with start_program(source, proxy.address) as program:
            assert program.stdout
            assert program.stdout.readline() == "attached\n"
            psutil.Process(proxy.pid).kill()
            out, err = program.communicate("go\n", timeout=DEADLINE_S)
    told = "Attempting to fetch value instead of handling error UNAVAILABLE"
    if aborts and jax.__version_info__ < (0, 11):  # mended since
        assert (program.returncode, out) == (-signal.SIGABRT, "broken\n"), err
        assert told in err
    else:
        assert (program.returncode, out) == (0, "broken\nUNAVAILABLE\n"), err
        assert told not in err


def test_a_program_that_gave_up_on_a_proxy_ends_after_its_last_attempt() -> None:
    """A thread that leaves JAX's library while Python ends would abort the process."""
    source = (
        PRELUDE
        + """
import time
class Slow:
    # (Python is ending while this sleeps.)
    def __init__(self): self.sleep = time.sleep
    def __del__(self): self.sleep(6)
slow = Slow()
try:
    attach(ProxyTarget(address=sys.argv[1]), timeout=3)
except Exception as error:
    print(type(error).__name__)
"""
    )
    # It accepts connections, and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = run_program(source, address, env={"SPS_PATIENCE": "0.02"})
    assert_quiet(done.stderr)
    assert done.stdout
