"""Whose file operations fail, and the programs that are run then."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.embedded import embedded, shut_down
from harness.file_faults import FileFault
from harness.fork_server.forking import forking
from harness.own_service import own_directories
from stress.file_faults.jobs import wrong_of_job
from stress.file_faults.sessions import is_left, wrong_of_session
from stress.file_faults.training import COMMAND, wrong_of_training

__all__ = ["ERRORS", "ROLES", "Role", "faults_of", "found_with"]

ERRORS = ("ENOSPC", "EDQUOT", "EROFS", "EIO")
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


def found_with(role: str, error: str, step: int) -> list[str]:
    """Runs the programs of a role in directories of their own; returns what was wrong with each.

    Args:
      role: A key of `ROLES`.
      error: The name of the error, as in the module `errno`.
      step: As for `faults_of`.
    """
    found = []
    with forking(), own_directories(), tempfile.TemporaryDirectory(prefix="sps-faults-") as scratch:
        for wrong in faults_of(ROLES[role], getattr(errno, error), Path(scratch), step=step):
            found.append(wrong)
            if wrong:
                print(f"  {role}, {error}: {wrong}", flush=True)
    return found
