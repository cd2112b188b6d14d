"""What programs do: threads, asyncio, debuggers, data loaders, restarted kernels."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jupyter_client
import pytest

from harness.embedded import DEADLINE_S, KIND, embedded, eventually, free_slices, nothing_left
from harness.programs import program, python

REPOSITORY = Path(__file__).parents[2]

AT_ONCE = """
import asyncio, glob, tempfile
from concurrent.futures import ThreadPoolExecutor
import jax, jax.numpy as jnp, numpy as np

ONE = {"expected_tpu_instances": {"tpuv6e:2x2": 1}}
with isc_pathways.connect(**ONE):
    there = jax.devices()
    total = jax.jit(lambda x: (x * 2).sum())

    # Threads that compile, run, put and fetch at once.
    def work(n):
        x = jax.device_put(np.full(64, n, "float32"), there[n % 4])
        mine = jax.jit(lambda a: (a * n).sum())
        return float(total(x)), float(mine(x)), np.asarray(x)[0]
    with ThreadPoolExecutor(8) as pool:
        for n, found in enumerate(pool.map(work, range(32))):
            assert found == (128 * n, 64 * n * n, n), (n, found)

    # A loop that waits for results on other threads.
    async def run(n):
        return float(await asyncio.to_thread(lambda: total(jnp.full(8, n)).block_until_ready()))
    async def run_all():
        return await asyncio.gather(*(run(n) for n in range(16)))
    assert asyncio.run(run_all()) == [16 * n for n in range(16)]

    # What JAX keeps.
    kept = jax.device_put(np.ones(3), there[3])
    assert any(a is kept for a in jax.live_arrays())
    assert all(a.devices() <= set(there) for a in jax.live_arrays())
    jax.clear_caches()
    assert float(total(jnp.ones(4))) == 8
    with jax.default_device(there[2]):
        assert jnp.ones(2).devices() == {there[2]}
        with jax.default_device(jax.devices("cpu")[0]):
            assert jnp.ones(2).devices() == {jax.devices("cpu")[0]}

    # A trace of this process.
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            total(jnp.arange(16.0)).block_until_ready()
        assert glob.glob(f"{directory}/plugins/profile/*/*.xplane.pb")
say("done")
"""

EXITS = """
import jax.numpy as jnp
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
    assert float(jnp.arange(4).sum()) == 6
    say("connected")
    os._exit(5)
"""

#: A script, as worker processes import it.
LOADS = """
import grain, numpy as np

class Rows:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return np.full(4, index, np.float32)

    def __repr__(self):
        return "Rows()"

def main():
    import jax, jax.numpy as jnp
    from absl import flags
    from shared_pathways_service import isc_pathways
    flags.FLAGS.mark_as_parsed()  # Grain wants that before it starts workers
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
        loader = grain.DataLoader(
            data_source=Rows(),
            sampler=grain.samplers.IndexSampler(
                32, shard_options=grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=1
            ),
            operations=[grain.transforms.Batch(8)],
            worker_count=2,
        )
        step = jax.jit(lambda x: x[:, 0].sum())
        assert sum(float(step(jnp.asarray(batch))) for batch in loader) == 31 * 16
    print("done")

if __name__ == "__main__":
    main()
"""

DEBUGGED = """
import jax, jax.numpy as jnp
x = jnp.arange(4.0)
breakpoint()
print("the end:", float(x.sum()), flush=True)
"""


def test_threads_and_asyncio_and_what_jax_keeps() -> None:
    with embedded(1), program(AT_ONCE) as running:
        running.expect("done")
        assert running.wait() == 0, running.stderr


def test_a_program_that_exits_at_once_leaves_nothing() -> None:
    with embedded(1), program(EXITS) as running:
        running.expect("connected")
        assert running.wait() == 5, running.stderr
        eventually(nothing_left, "its proxy to be gone")


def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    with embedded(1):
        done = python(script)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        eventually(nothing_left, "its proxy to be gone")


class Screen:
    """A program on a terminal of its own."""

    def __init__(self, master: int) -> None:
        self.shown = ""
        self._master = master

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> None:
        """Waits until the terminal shows a text after what was expected before."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {text!r}: {self.shown!r}"
            if select.select([self._master], [], [], left)[0]:
                self.shown += os.read(self._master, 4096).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]


@contextlib.contextmanager
def on_terminal(*command: str) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
    master, slave = pty.openpty()
    leads = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{leads}os.execv(sys.argv[1], sys.argv[1:])", *command],
        cwd=REPOSITORY,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield process, Screen(master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_debugger_has_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "debugged.py"
    script.write_text(DEBUGGED)
    run = [sys.executable, "-m", "shared_pathways_service.cli", "run", f"--slices={KIND}=1"]
    with embedded(1):
        with on_terminal(*run, "--", sys.executable, str(script)) as (process, screen):
            screen.expect("(Pdb)")
            screen.type("float(x.sum()) + 1\n")
            screen.expect("7.0")
            screen.expect("(Pdb)")
            screen.type("x = x * 2\n")
            screen.expect("(Pdb)")
            screen.type("continue\n")
            screen.expect("the end: 12.0")
            assert process.wait(DEADLINE_S) == 0
        eventually(nothing_left, "its proxy to be gone")


CELL = """
import jax, jax.numpy as jnp
from shared_pathways_service import isc_pathways
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
assert float(jnp.arange(4).sum()) == 6
"""
FOREVER = """
print("begins", flush=True)
jax.lax.while_loop(lambda x: x < 1e30, lambda x: x + 1, 0.0).block_until_ready()
"""


def is_button(message: Mapping[str, Any]) -> bool:
    """Whether a message of a kernel makes a button."""
    state = message["content"].get("data", {}).get("state", {})
    return bool(message["msg_type"] == "comm_open" and state["_model_name"] == "ButtonModel")


def answers(address: str) -> bool:
    """Whether a web page is served."""
    try:
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as page:
            return bool(page.status == 200)
    except OSError:  # also of a connection that is reset, as the server ends
        return False


# The kernel's messages pass through sockets that belong to the client's event loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_kernel_has_a_button_and_a_page_and_is_restarted_in_a_computation(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(own_directories / name.lower()))
    with embedded(1), contextlib.ExitStack() as undo:
        manager, client = jupyter_client.manager.start_new_kernel(
            startup_timeout=DEADLINE_S, kernel_name="python3"
        )
        undo.callback(manager.cleanup_resources)
        undo.callback(manager.shutdown_kernel, now=True)
        undo.callback(client.stop_channels)

        said: list[dict[str, Any]] = []

        def run(source: str) -> None:
            reply = client.execute_interactive(source, timeout=DEADLINE_S, output_hook=said.append)
            assert reply["content"]["status"] == "ok", reply["content"]

        run("%load_ext shared_pathways_service")
        run("%sps connect tpuv6e:2x2=1")

        def buttons() -> list[str]:
            run("pass")  # (The button may come after the end of its cell.)
            return [message["content"]["comm_id"] for message in said if is_button(message)]

        eventually(lambda: len(buttons()) == 1, "the button")
        [button] = buttons()
        click = {"method": "custom", "content": {"event": "click"}}
        pressed = client.session.msg("comm_msg", {"comm_id": button, "data": click})
        client.shell_channel.send(pressed)
        eventually(nothing_left, "the button to release the slices")
        run("%sps ui")
        [shown] = [m["content"] for m in said if "Open the service" in str(m["content"])]
        page = shown["data"]["text/html"].split('"')[1]
        assert answers(page)

        run(CELL)
        run("first = connection")
        run(CELL)  # again: the same connection
        run("assert connection is first")
        assert not free_slices()
        client.execute(FOREVER)
        while client.get_iopub_msg(timeout=DEADLINE_S)["msg_type"] != "stream":
            pass
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=DEADLINE_S)
        eventually(nothing_left, "the slices of the killed kernel to be free")
        eventually(lambda: not answers(page), "the killed kernel's page to end")
        run(CELL)
        run("connection.close()")
        assert nothing_left()
