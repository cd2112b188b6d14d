"""Scripts that connect at their top level, which multiprocessing runs again in each child."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S

SCRIPT = """
import multiprocessing, sys

def work():
    print("worked", flush=True)

# (The parent has no service to connect to. Only the answer to the child counts.)
if __name__ != "__main__":
    from shared_pathways_service import isc_pathways

    isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, queue_timeout=3600).start()
child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
child.start()
child.join()
"""


def run(script: Path, way: str) -> subprocess.CompletedProcess[str]:
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, str(script), way],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("way", ["spawn", "forkserver"])
def test_connect_in_a_child_that_imports_its_main_module_is_refused(
    own_directories: Path, tmp_path: Path, way: str
) -> None:
    done = run(tmp_path / "train.py", way)
    assert "connect() is at the top level of the main module" in done.stderr, done.stderr
    assert 'below `if __name__ == "__main__":`' in done.stderr
    assert "worked" not in done.stdout
    assert list(own_directories.iterdir()) == []
