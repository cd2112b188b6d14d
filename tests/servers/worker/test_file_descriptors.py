"""A worker that has no free file descriptor."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.processes import DEADLINE_S, REPOSITORY


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is taken for ended")
def test_it_keeps_its_executor(own_directories: Path) -> None:
    code = f"""
        import os, queue, resource, signal
        from pathlib import Path
        from shared_pathways_service.servers.worker.executor_supervisor import ExecutorSupervisor
        from tests.servers.standing_in import StandIn
        from tests.servers.worker.test_executor_supervisor import assigned
        news = queue.SimpleQueue()
        supervisor = ExecutorSupervisor(
            StandIn(Path({str(own_directories)!r})).command,
            slice_id="slice-3", host_index=1, report=news.put, on_unfit=print,
        )
        supervisor.assign(assigned(1))
        serving = news.get(timeout={DEADLINE_S})
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        # The second report comes after a look at the executor.
        for _ in range(2):
            supervisor.repeat_report()
            print(news.get(timeout={DEADLINE_S}) == serving)
        print(supervisor.measure())
        os.kill(serving.pid, signal.SIGKILL)
        print(type(news.get(timeout={DEADLINE_S})).__name__)
        supervisor.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.stdout.splitlines() == ["True", "True", "None", "Ended"], done.stderr
