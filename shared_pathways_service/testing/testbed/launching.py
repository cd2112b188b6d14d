"""Starts the process of a testbed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from shared_pathways_service.runtime.location import PARENT_DIRECTORY
from shared_pathways_service.testing.testbed.build import find_or_build
from shared_pathways_service.testing.testbed.errors import TestbedError, TestbedUnavailable

__all__ = ["INSTALL_UTIL_LINUX", "check_machine", "launch"]

#: How to get `setpriv`, `unshare` and `nsenter`.
INSTALL_UTIL_LINUX = "install util-linux, e.g. apt-get install util-linux"
_MODULE = "shared_pathways_service.testing.testbed"
_READY_FD = 3


def launch(
    directory: Path, *, cache_dir: Path, parent_pid: int, report: Callable[[str], None]
) -> int:
    """Starts a testbed's process in a directory, and waits until it is ready.

    Args:
      directory: Empty, with a short path; the caller removes it after the end.
      cache_dir: Where the control plane is built.
      parent_pid: The process whose end ends the testbed.
      report: Called with lines about the progress of the build.

    Returns:
      Its process id, for which the caller must wait if it lives longer.

    Raises:
      TestbedUnavailable: The control plane is not built, and cannot be built.
      TestbedError: The testbed does not start.
    """
    check_machine()
    programs = find_or_build(cache_dir, report)
    log = directory / "testbed.log"
    command = [
        *(sys.executable, "-P", "-m", _MODULE),
        f"--directory={directory}",
        f"--programs={programs.directory}",
        f"--parent_pid={parent_pid}",
        f"--ready_fd={_READY_FD}",
    ]
    with contextlib.ExitStack() as stack:
        ours, theirs = os.pipe()
        answers = stack.enter_context(os.fdopen(ours, "rb"))
        with os.fdopen(theirs, "wb") as report_pipe:
            # Not `subprocess`, which warns about a child that outlives this process.
            pid = os.posix_spawn(
                sys.executable,
                command,
                _environment(os.environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    (os.POSIX_SPAWN_DUP2, report_pipe.fileno(), _READY_FD),
                ],
                setsid=True,
            )
        with contextlib.ExitStack() as undo:
            undo.callback(os.waitpid, pid, 0)
            undo.callback(os.kill, pid, signal.SIGTERM)
            # It always answers or ends, because its own waits have deadlines.
            line = answers.readline()
            undo.pop_all()
    outcome = json.loads(line) if line else {"error": f"it ended: {log.read_text()[-2000:]}"}
    if "error" in outcome:
        os.waitpid(pid, 0)
        raise TestbedError(f"the testbed did not come up: {outcome['error']}")
    return pid


def check_machine() -> None:
    """Checks that a testbed can run on this machine, before anything is built.

    Raises:
      TestbedUnavailable: It cannot.
    """
    if sys.platform != "linux":
        raise TestbedUnavailable(f"the testbed needs Linux; this is {sys.platform}")
    if shutil.which("setpriv") is None:
        raise TestbedUnavailable(
            "the testbed needs `setpriv`, and there is no such program",
            hint=INSTALL_UTIL_LINUX,
        )


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the testbed's environment, without variables of JAX programs and of tests."""
    passed = {name: environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in environ}
    return {**passed, "PYTHONPATH": PARENT_DIRECTORY, "PYTHONUNBUFFERED": "1"}
