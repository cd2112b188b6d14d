"""Each file operation of clients, agents and services fails once: full disks, quotas, bad disks.

    python -m stress.file_faults [--step 1] [--role agent …] [--error ENOSPC …] [--out result.json]

A program connects and computes, again and again: the first time the first operation below a
directory and all after it fail in the processes of one role, then the second one and so on, until
none fails any more. Each time the program must compute right, or get an error that names the
directory, its setting and the reason, and nothing may be left behind but what `sps reap` removes.
Ends with 1 if that was not so.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.embedded import KIND, embedded, journal, nothing_left, shut_down
from harness.file_faults import FileFault
from harness.own_service import own_directories
from harness.processes import DEADLINE_S, REPOSITORY
from harness.programs import sps
from harness.results import exit_code, measured, write_result

__all__ = ["ROLES", "Role", "faults_of"]

#: Says the sum that it computed, or its error.
_CLIENT = f"""
import json
from shared_pathways_service import errors, isc_pathways
try:
    with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}):
        import jax.numpy as jnp
        said = {{"value": float(jnp.arange(4.0).sum())}}
except errors.SharedPathwaysError as error:
    said = {{"error": error.to_json()}}
print(json.dumps(said))
"""
_ERRORS = ("ENOSPC", "EDQUOT", "EROFS", "EIO")
#: More operations than any of the processes has.
_MOST = 80


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """Processes whose operations fail.

    Attributes:
      command: A part of their command lines.
      directory: The variable with the directory below which they do.
      starts_service: Whether each program starts the service, which ends after it.
    """

    command: str
    directory: str
    starts_service: bool = False


ROLES = {
    "client": Role(command="connect(", directory="SPS_STATE_DIR"),
    "agent": Role(command="shared_pathways_service.agent", directory="SPS_STATE_DIR"),
    "service": Role(command="servers.supervisor", directory="SPS_STATE_DIR", starts_service=True),
    "sockets": Role(command="servers.supervisor", directory="SPS_RUNTIME_DIR", starts_service=True),
}


def faults_of(role: Role, number: int, scratch: Path, *, step: int = 1) -> Iterator[str]:
    """Runs programs with a fault each; yields what was wrong, and empty texts for what was right.

    Args:
      role: Where operations fail.
      number: Of the error.
      scratch: A directory for files.
      step: 1: each operation is the first to fail once; 2: every other one, and so on.
    """
    with contextlib.nullcontext() if role.starts_service else embedded():
        for first in range(1, _MOST, step):
            fault = FileFault(
                role=role.command,
                directory=Path(os.environ[role.directory]),
                first=first,
                number=number,
                told=scratch / f"{number}-{first}",
            )
            yield _wrong(_outcome(fault), fault, role.directory) or _left(role)
            if not fault.failed:
                return
    yield f"more than {_MOST} operations"


def _outcome(fault: FileFault) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        cwd=REPOSITORY,
        env={**os.environ, **fault.variables()},
    )
    if done.returncode:
        return {"crash": done.stderr[-2000:]}
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


def _wrong(said: dict[str, Any], fault: FileFault, variable: str) -> str:
    if said == {"value": 6.0}:
        return ""
    error = said.get("error") or {"message": f"no answer: {said}"}
    text = " ".join(str(error.get(field)) for field in ("message", "hint"))
    missing = [
        wanted
        for wanted in (variable, str(fault.directory), os.strerror(fault.number))
        if wanted not in text
    ]
    if missing or "Traceback" in text:
        return f"{fault}: {fault.failed[:1]}: {missing or 'a trace'}: {text}"
    return ""


def _left(role: Role) -> str:
    if role.starts_service:
        shut_down()
        return ""
    sps("reap")
    return "" if nothing_left() else f"left behind: {journal()}"


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--role", action="append", choices=ROLES)
    parser.add_argument("--error", action="append", choices=_ERRORS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    counts: dict[str, int] = {}
    wrong: list[str] = []
    for name in arguments.role or ROLES:
        for error in arguments.error or _ERRORS:
            with (
                own_directories(),
                tempfile.TemporaryDirectory(prefix="sps-faults-") as scratch,
            ):
                number = getattr(errno, error)
                found = list(faults_of(ROLES[name], number, Path(scratch), step=arguments.step))
            counts[f"{name}, {error}"] = len(found)
            wrong += filter(None, found)
            print(f"{name}, {error}: {len(found)} operations", *filter(None, found), sep="\n  ")
    result = {"programs": counts, "wrong": wrong}
    write_result("file_faults", result, arguments.out, {"programs": list(counts.values())})
    return exit_code(wrong)


if __name__ == "__main__":
    sys.exit(main())
