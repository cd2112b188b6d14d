"""Starts a process that runs JAX on a real proxy, and a check in it whenever one is asked for."""

from __future__ import annotations

import contextlib
import json
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.processes import DEADLINE_S, KIND, REPOSITORY, ServerProcess

_PROXY = "shared_pathways_service.servers.proxy"
#: Runs the check of a name; returns its failure, or an empty text.
RunCheck = Callable[[str], str]


@contextlib.contextmanager
def child_on_a_proxy(
    module: str,
    *,
    python: str = sys.executable,
    proxys_python: str = sys.executable,
    proxys_flags: Sequence[str] = (),
) -> Iterator[RunCheck]:
    """Runs `python -m module ADDRESS`, which answers as `child` does, and its proxy.

    Args:
      module: Of the child.
      python: The child's.
      proxys_python: Of another environment, with another release of JAX, for instance.
      proxys_flags: More flags of the proxy.
    """
    root = Path(tempfile.mkdtemp(prefix="sps"))
    flags = [f"--server_socket={root / 's'}", f"--virtual_slices={KIND},{KIND}", *proxys_flags]
    with ServerProcess(_PROXY, flags, python=proxys_python) as proxy:
        assert proxy.ready is not None
        with child_that_answers(module, f"unix:{root / 's'}", python=python) as run:
            yield run
        assert proxy.stop() == 0
    shutil.rmtree(root)


@contextlib.contextmanager
def child_that_answers(
    module: str, *arguments: str, python: str = sys.executable
) -> Iterator[RunCheck]:
    """Runs `python -m module ARGUMENTS`, which answers as `child` does."""
    with subprocess.Popen(
        [python, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def run(name: str) -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(name + "\n")
            child.stdin.flush()
            assert select.select([child.stdout], [], [], 2 * DEADLINE_S)[0], f"{name} hangs"
            failure: str = json.loads(child.stdout.readline())
            return failure

        yield run
        child.stdin.close()
        assert child.wait(DEADLINE_S) == 0
