"""What the error of a program or command must say that ran while file operations failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.file_faults import FileFault
from harness.processes import DEADLINE_S, REPOSITORY

__all__ = ["fault_in", "run_program", "sps_with"]


def run_program(source: str, *arguments: str, fault: FileFault | None) -> dict[str, Any]:
    """Runs a Python program with a fault; returns what its last line says, as JSON."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", source, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
            cwd=REPOSITORY,
            env={**os.environ, **(fault.variables() if fault is not None else {})},
        )
    except subprocess.TimeoutExpired:
        return {"crash": f"it has not ended within {DEADLINE_S:g} s"}
    if done.returncode:
        return {"crash": done.stderr[-2000:]}
    said = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(said, dict)
    return said


def sps_with(
    fault: FileFault | None, *words: str, directory: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    """Runs an `sps` command in a directory, with a fault or without.

    Raises:
      subprocess.TimeoutExpired: It hangs.
    """
    variables = fault.variables() if fault is not None else {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        cwd=directory,
        env={**os.environ, **variables},
    )


def fault_in(text: str, fault: FileFault, setting: str) -> str:
    """Returns what is missing in an error's text; empty: it names the place and the reason."""
    wanted = (setting, str(fault.directory), os.strerror(fault.number))
    missing = [each for each in wanted if each not in text]
    if missing or "Traceback" in text:
        return f"{fault}: {fault.failed[:1]}: {missing or 'a trace'}: {text}"
    return ""
