"""A notebook's interrupt in a cluster: it stops the wait or the fetch, and not the tunnel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import jupyter_client
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from harness.deadlines import deadline
from harness.testbed.clients import PRELUDE, client, deployed, nothing_left, tenant
from shared_pathways_service.testing.testbed import Namespace

pytestmark = pytest.mark.race

DEADLINE_S = deadline(90.0)

HOLDER = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}):
    say("holds")
    wait_for("leave")
"""

FETCH = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
def forever(x):
    return lax.while_loop(lambda c: c[0] < 1e30, lambda c: (c[0] + 1, c[1] * 0.999), (0.0, x))[1]
first, *_, last = jax.devices()
busy = jax.jit(forever)(jax.device_put(jnp.ones(4), first))
print("fetching", flush=True)
busy.block_until_ready()
"""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a cell: its printed text, and the error that ended it."""

    text: str
    error: str


class Kernel:
    """A real kernel, whose cells are run one at a time."""

    def __init__(self, manager: KernelManager, talk: BlockingKernelClient) -> None:
        self._manager = manager
        self._talk = talk

    def run(self, source: str, *, interrupt_at: str = "") -> Answer:
        """Runs a cell; interrupts it, as the notebook's button does, once it printed a text."""
        asked = self._talk.execute(source)
        text, error = "", ""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            said = self._talk.get_iopub_msg(timeout=deadline - time.monotonic())
            if said["parent_header"].get("msg_id") != asked:
                continue
            kind, content = said["msg_type"], said["content"]
            if kind == "stream":
                text += content["text"]
                if interrupt_at and interrupt_at in text:
                    interrupt_at = ""
                    self._manager.interrupt_kernel()
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return Answer(text, error)

    def value(self, expression: str) -> str:
        """Returns what a cell with an expression prints."""
        answer = self.run(f"print({expression})")
        assert not answer.error, answer
        return answer.text.strip()


@contextlib.contextmanager
def kernel(directory: Path, environment: Mapping[str, str]) -> Iterator[Kernel]:
    manager, talk = jupyter_client.manager.start_new_kernel(
        kernel_name="python3", cwd=str(directory), env=dict(environment)
    )
    try:
        yield Kernel(manager, talk)
    finally:
        talk.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.fixture
def environment(
    namespace: Namespace, own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """A tenant's, with the package as if it were installed."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(own_directories / name.lower()))
    root = str(Path(__file__).parents[3])
    return {**os.environ, **tenant(namespace), "PYTHONPATH": root}


# The kernel's messages pass through sockets that belong to the client's event loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_interrupt_stops_the_wait_or_the_fetch_and_not_the_tunnel(
    namespace: Namespace, own_directories: Path, environment: dict[str, str]
) -> None:
    deployed(namespace)
    with client(namespace, HOLDER) as holder, kernel(own_directories, environment) as notebook:
        holder.expect("holds")
        begun = notebook.run(
            "import os\nfrom shared_pathways_service import isc_pathways"
            + PRELUDE
            + "connection = connecting(expected_tpu_instances={'tpuv6e:2x2': 2}, wait='ready',"
            "    queue_timeout=600).start()"
        )
        assert not begun.error, begun
        address = notebook.value("connection.address")
        waited = notebook.run(
            "print('waiting', flush=True); connection.wait_until_placed()", interrupt_at="waiting"
        )
        assert waited.error == "KeyboardInterrupt"
        assert notebook.value("connection.status().state, connection.status().placed") == (
            "serve False"
        )
        holder.tell("leave")
        assert holder.wait() == 0
        assert not notebook.run("connection.wait_until_placed()").error
        fetched = notebook.run(FETCH, interrupt_at="fetching")
        assert fetched.error == "KeyboardInterrupt", fetched
        # The same tunnel, and another slice than the one that is busy.
        assert notebook.value("float(jax.device_put(np.arange(8.0), last).sum())") == "28.0"
        assert notebook.value("connection.address") == address
        assert notebook.value("connection.status().agent_alive") == "True"
        assert not notebook.run("connection.close()").error
        nothing_left(namespace)
