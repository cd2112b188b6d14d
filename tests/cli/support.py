"""Programs and commands of several tests of `sps`."""

from __future__ import annotations

import os
import subprocess
import sys

from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S

HOLDER = """
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1})
try:
    with connection:
        say("holds", name=connection.proxy_job_name)
        wait_for("leave")
    say("left")
except errors.ProxyFailed as error:
    say("deleted", message=str(error))
"""


def completed(line: str) -> list[str]:
    """What a shell offers at the end of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli"],
        env={**os.environ, "_SPS_COMPLETE": "complete_bash", **words},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=REPOSITORY,
    ).stdout.split()
