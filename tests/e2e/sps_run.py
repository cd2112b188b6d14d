"""Runs `sps run` as a process."""

from __future__ import annotations

import os
import subprocess
import sys

from harness.embedded import DEADLINE_S
from harness.processes import REPOSITORY


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shared_pathways_service.cli", "run", *words],
        cwd=REPOSITORY,
        env={n: value for n, value in {**os.environ, **variables}.items() if n != "PYTHONPATH"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*words: str, **variables: str) -> tuple[int, str, str]:
    with start(*words, **variables) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err
