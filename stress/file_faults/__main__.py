"""Each file operation of clients, agents, services and training fails: full disks, bad disks.

    python -m stress.file_faults [--step 1] [--role agent …] [--error ENOSPC …] [--out result.json]

A program runs again and again: the first time the first operation below a directory and all after
it fail in the processes of one role, then the second one and so on, until none fails any more.
Operations are those that open, make, rename and remove files, and each write, sync and close. Each
time the program must compute right, or get an error that names the directory, its setting and the
reason. Nothing may be left behind but what `sps reap` removes; a job that was accepted must run
once there is room again, or its state say why not; a checkpoint that was reported must be
restored. Ends with 1 if that was not so.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.embedded import embedded, shut_down
from harness.file_faults import FileFault
from harness.own_service import own_directories
from harness.results import exit_code, measured, write_result
from stress.file_faults.jobs import wrong_of_job
from stress.file_faults.sessions import is_left, wrong_of_session
from stress.file_faults.training import COMMAND, wrong_of_training

__all__ = ["ROLES", "Role", "faults_of"]

_ERRORS = ("ENOSPC", "EDQUOT", "EROFS", "EIO")
#: More operations than any of the processes has.
_MOST = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """Processes whose operations fail.

    Attributes:
      command: A part of their command lines.
      setting: The variable, or argument, that sets the directory below which they do.
      run: Runs a program with a fault, in a scratch directory; returns what was wrong.
      uses_service: Whether the programs share a service, which has no faults.
      is_switched: Whether operations fail only for a while.
    """

    command: str
    setting: str
    run: Callable[[FileFault, Path], str]
    uses_service: bool = False
    is_switched: bool = False

    def directory(self, scratch: Path) -> Path:
        """Returns the directory below which operations fail."""
        found = os.environ.get(self.setting)
        return scratch / "run" if found is None else Path(found)


def _session(setting: str) -> Callable[[FileFault, Path], str]:
    return lambda fault, _scratch: wrong_of_session(fault, setting) or is_left()


def _start(setting: str) -> Callable[[FileFault, Path], str]:
    def run(fault: FileFault, _scratch: Path) -> str:
        wrong = wrong_of_session(fault, setting)
        shut_down()
        return wrong

    return run


_SUPERVISOR = "servers.supervisor"
_STATE = "SPS_STATE_DIR"
_RUNTIME = "SPS_RUNTIME_DIR"
_RUN = "directory="
ROLES = {
    "client": Role(command="connect(", setting=_STATE, run=_session(_STATE), uses_service=True),
    "agent": Role(
        command="shared_pathways_service.agent",
        setting=_STATE,
        run=_session(_STATE),
        uses_service=True,
    ),
    "service": Role(command=_SUPERVISOR, setting=_STATE, run=_start(_STATE)),
    "sockets": Role(command=_SUPERVISOR, setting=_RUNTIME, run=_start(_RUNTIME)),
    "jobs": Role(
        command=_SUPERVISOR,
        setting=_STATE,
        run=lambda fault, scratch: wrong_of_job(fault, _STATE, scratch / "job"),
        is_switched=True,
    ),
    "elastic": Role(
        command=COMMAND,
        setting=_RUN,
        run=lambda fault, _scratch: wrong_of_training(fault, _RUN),
    ),
}


def faults_of(role: Role, number: int, scratch: Path, *, step: int = 1) -> Iterator[str]:
    """Runs programs with a fault each; yields what was wrong, and empty texts for what was right.

    Args:
      role: Where operations fail.
      number: Of the error.
      scratch: A directory for files.
      step: 1: each operation is the first to fail once; 2: every other one, and so on.
    """
    with embedded() if role.uses_service else contextlib.nullcontext():
        for first in range(1, _MOST, step):
            own = scratch / f"{number}-{first}"
            own.mkdir()
            fault = FileFault(
                role=role.command,
                directory=role.directory(own),
                first=first,
                number=number,
                told=own / "told",
                switch=own / "switch" if role.is_switched else None,
            )
            yield role.run(fault, own)
            if not fault.failed:
                return
            shutil.rmtree(own)
    yield f"more than {_MOST} operations"


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
    began = time.monotonic()
    for name in arguments.role or ROLES:
        for error in arguments.error or _ERRORS:
            with (
                own_directories(),
                tempfile.TemporaryDirectory(prefix="sps-faults-") as scratch,
            ):
                number = getattr(errno, error)
                count = 0
                for each in faults_of(ROLES[name], number, Path(scratch), step=arguments.step):
                    count += 1
                    if each:
                        wrong.append(each)
                        print(f"  {each}", flush=True)
            counts[f"{name}, {error}"] = count
            print(f"{name}, {error}: {count} programs", flush=True)
    each_s = (time.monotonic() - began) / sum(counts.values())
    print(f"{sum(counts.values())} programs, {each_s:.1f} s each; {len(wrong)} wrong (aim: 0)")
    result = {"programs": counts, "wrong": wrong}
    write_result("file_faults", result, arguments.out, {"programs": list(counts.values())})
    return exit_code(wrong)


if __name__ == "__main__":
    sys.exit(main())
