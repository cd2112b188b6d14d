"""Large arrays on their way to a proxy of this machine: by files, and memory that is kept."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from harness.embedded import embedded, eventually, nothing_left
from harness.programs import pids, program

#: Both as the proxy maps them and as glibc has them, in a place of its own each.
SOURCE = """
import subprocess
import jax, numpy as np
NAMES = ("IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY", "SPS_TRANSFER_DIR")
def variables():
    found = [os.environ.get(name) for name in NAMES]
    return [None if one is None else os.path.realpath(one) for one in found]
def in_heap(array):
    heaps = [line.split()[0] for line in open("/proc/self/maps") if line.endswith("[heap]\\n")]
    bounds = [[int(part, 16) for part in heap.split("-")] for heap in heaps]
    return any(begin <= array.ctypes.data < end for begin, end in bounds)
large = np.random.default_rng(0).random(2 << 20, np.float32)
CHILD = '''
import os, sys, jax, numpy as np
x = jax.device_put(np.arange(1 << 20, dtype=np.float32))
name = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"
print(float(x.sum()), os.path.realpath(os.environ[name]))
'''
before = in_heap(np.empty(8 << 20))
with isc_pathways.connect(tune_allocator=TUNE):
    x = jax.device_put(large)
    assert np.array_equal(np.asarray(x), large)
    say("put", variables=variables(), heap=[before, in_heap(np.empty(8 << 20))])
    wait_for("child")
    from shared_pathways_service.jax_client import standalone
    from shared_pathways_service.runtime.settings import Settings
    path = os.pathsep.join(
        [str(standalone.place(Settings.load().cache_dir)), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", CHILD], env=dict(os.environ, PYTHONPATH=path),
                          stdout=subprocess.PIPE, text=True, check=True)
    say("child", said=done.stdout.split())
    wait_for("go on")
say("left", variables=variables())
"""


def mapped(directory: Path | None) -> list[str]:
    """Names of the transfers' files there (None: anywhere) that the one proxy has mapped."""
    [pid] = pids("proxy")
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.rpartition("/")[2] for line in lines if f"{directory or ''}/lt_" in line]


@pytest.mark.race
def test_large_arrays_go_by_files_that_are_removed() -> None:
    within = Path(os.environ["SPS_SHARED_MEMORY_DIR"])
    with embedded(1) as service:
        [shared] = within.iterdir()
        with program(SOURCE.replace("TUNE", "True")) as client:
            put = client.expect("put")
            directory, root = map(Path, put["variables"])
            assert root.parent == shared
            assert directory.parent == root
            # XLA uses the file's pages as they are.
            [name] = mapped(directory)
            assert name.startswith("lt_")
            assert name.endswith("(deleted)")
            assert put["heap"] == [False, True]

            client.tell("child")
            total, childs = client.expect("child")["said"]
            assert float(total) == sum(range(1 << 20))
            assert Path(childs).parent == root
            assert Path(childs) != directory
            eventually(lambda: not Path(childs).exists(), "the child's directory to go")
            assert directory.exists()

            client.tell("go on")
            assert client.expect("left")["variables"] == [None, None]
            assert client.wait() == 0
        eventually(nothing_left, "the proxy to be gone")
        assert list(shared.iterdir()) == []

        with program(SOURCE.replace("TUNE", "False")) as client:
            put = client.expect("put")
            assert put["heap"] == [False, False]
            client.signal(signal.SIGKILL)
            client.wait()
        eventually(nothing_left, "the proxy to be gone")
        eventually(lambda: not list(shared.iterdir()), "its directory to go")

        with program(SOURCE.replace("TUNE", "False")) as client:
            client.expect("put")
            service.kill()
            assert list(shared.iterdir())
            client.signal(signal.SIGKILL)
            client.wait()
    # The next one begins with none of it, and takes its own along.
    with embedded(1):
        assert list(shared.iterdir()) == []
    assert not shared.exists()


def test_without_shared_memory_they_go_with_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_SHARED_MEMORY_DIR", "none")
    # A connection within another's variables: they are not this one's.
    monkeypatch.setenv("IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY", "/nowhere")
    with embedded(1), program(SOURCE.replace("TUNE", "False")) as client:
        assert client.expect("put")["variables"] == [None, None]
        assert mapped(None) == []
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        eventually(nothing_left, "the proxy to be gone")


#: Puts and fetches as told, over two connections; each array is another one.
AGAIN = """
import time
import jax, numpy as np
from pathlib import Path
NAME = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"
double = jax.jit(lambda x: 2 * x)
numbers = iter(range(100))
def large():
    return np.random.default_rng(next(numbers)).random(2 << 20, np.float32)
for connection in range(2):
    with isc_pathways.connect():
        kept = large()
        on_device = jax.device_put(kept).block_until_ready()
        say("put", directory=os.path.realpath(os.environ[NAME]))
        wait_for("put again")
        for value in (large(), large()):
            assert np.array_equal(np.asarray(jax.device_put(value)), value)
        say("again", mode=oct(os.stat(os.environ[NAME]).st_mode & 0o777))
        wait_for("compute")
        while not os.stat(os.environ[NAME]).st_nlink:  # (until it was made again)
            time.sleep(0.01)
        value = large()
        assert np.array_equal(np.asarray(double(value)), 2 * value)
        assert np.array_equal(np.asarray(on_device), kept)
        del on_device
        say("computed")
"""


def remove_all(within: Path) -> None:
    """Removes what logind removes."""
    for shared in within.iterdir():
        shutil.rmtree(shared, ignore_errors=True)  # (it may be made again meanwhile)


@pytest.mark.race
def test_a_session_goes_on_after_its_shared_memory_was_removed_as_at_a_logout() -> None:
    within = Path(os.environ["SPS_SHARED_MEMORY_DIR"])
    with embedded(1), program(AGAIN) as client:
        seen = []
        # A second connection of the process has a directory of its own, with the same care.
        for _ in range(2):
            seen.append(client.expect("put")["directory"])
            remove_all(within)
            client.tell("put again")
            assert client.expect("again")["mode"] == "0o700"
            assert mapped(None)

            # What a compiled program takes from this process passes by no code of ours.
            remove_all(within)
            client.tell("compute")
            client.expect("computed")
        assert client.wait() == 0
        assert seen[0] != seen[1]
        eventually(nothing_left, "the proxy to be gone")
        # Nobody makes them again after their end.
        assert [list(shared.iterdir()) for shared in within.iterdir()] == [[]]
    assert not list(within.iterdir())
