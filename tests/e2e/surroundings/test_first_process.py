"""A service that is the first process of a container, as in an image with `sps serve`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import machines
from harness.embedded import DEADLINE_S, KIND
from harness.processes import REPOSITORY

CLI = (sys.executable, "-m", "shared_pathways_service.cli")
OWN_USER = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
SPACES = ("--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
#: Leaves two orphans, and ends after them.
JOB = "(sleep 0.2 & exec true); (sleep 0.2 & exec true); sleep 2"


@pytest.mark.skipif(not machines.is_possible(), reason="this user may not make namespaces")
def test_orphans_of_jobs_are_reaped_and_sigterm_ends_it(own_directories: Path) -> None:
    serve = [*CLI, "serve", f"--slices={KIND}=1", "--spares=0"]
    with subprocess.Popen(
        ["unshare", *OWN_USER, *SPACES, *serve],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as container:
        try:
            assert container.stdout is not None
            assert any("slice.ready" in line for line in container.stdout)
            children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
            [first] = children.read_text().split()

            def inside(*command: str) -> subprocess.CompletedProcess[str]:
                entered = ["--user", "--preserve-credentials"] if OWN_USER else []
                return subprocess.run(
                    ["nsenter", f"--target={first}", *entered, "--pid", "--mount", *command],
                    cwd=REPOSITORY,
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE_S,
                    check=True,
                )

            inside(*CLI, "submit", "--name=orphans", "--", "sh", "-c", JOB)
            inside(*CLI, "wait", "orphans")
            states = inside("ps", "-eo", "stat=").stdout.split()
            assert states
            assert not [state for state in states if state.startswith("Z")]
            os.kill(int(first), signal.SIGTERM)
            assert container.wait(DEADLINE_S) == 128 + signal.SIGTERM
        finally:
            container.kill()
