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
from stress.file_faults.jobs import wrong_of_job, wrong_of_submission
from stress.file_faults.services import end_service
from stress.file_faults.sessions import is_left, wrong_of_run, wrong_of_session
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
      settings: The variables, or arguments, that set the directories below which they do, one
        after the other.
      run: Runs a program with a fault, below the directory of a setting, in a scratch directory;
        returns what was wrong.
      uses_service: Whether the programs share a service, which has no faults.
      is_switched: Whether operations fail only for a while.
    """

    command: str
    settings: tuple[str, ...]
    run: Callable[[FileFault, str, Path], str]
    uses_service: bool = False
    is_switched: bool = False


def _session(fault: FileFault, setting: str, _scratch: Path) -> str:
    return wrong_of_session(fault, setting) or is_left()


def _run(fault: FileFault, setting: str, _scratch: Path) -> str:
    return wrong_of_run(fault, setting) or is_left()


def _start(fault: FileFault, setting: str, _scratch: Path) -> str:
    wrong = wrong_of_session(fault, setting)
    shut_down()
    return wrong


def _first_session(fault: FileFault, setting: str, scratch: Path) -> str:
    try:
        return _session(fault, setting, scratch)
    finally:
        end_service()


_CLI = "shared_pathways_service.cli"
_AGENT = "shared_pathways_service.agent"
_SUPERVISOR = "servers.supervisor"
_STATE = "SPS_STATE_DIR"
_RUNTIME = "SPS_RUNTIME_DIR"
_CACHE = "SPS_CACHE_DIR"
_TRAINING = "directory="
ROLES = {
    "client": Role(command="connect(", settings=(_STATE,), run=_session, uses_service=True),
    "agent": Role(command=_AGENT, settings=(_STATE,), run=_session, uses_service=True),
    # Of an agent that starts the service.
    "starts": Role(command=_AGENT, settings=(_RUNTIME, _STATE), run=_first_session),
    "service": Role(command=_SUPERVISOR, settings=(_STATE,), run=_start),
    "sockets": Role(command=_SUPERVISOR, settings=(_RUNTIME,), run=_start),
    "jobs": Role(
        command=_SUPERVISOR,
        settings=(_STATE,),
        run=lambda fault, setting, scratch: wrong_of_job(fault, setting, scratch / "job"),
        is_switched=True,
    ),
    "run": Role(command=f"{_CLI} run", settings=(_CACHE, _STATE), run=_run, uses_service=True),
    # `sps submit` starts the service itself.
    "submit": Role(
        command=f"{_CLI} submit",
        settings=(_RUNTIME, _STATE),
        run=lambda fault, setting, scratch: wrong_of_submission(fault, setting, scratch / "job"),
    ),
    "elastic": Role(
        command=COMMAND,
        settings=(_TRAINING,),
        run=lambda fault, setting, _scratch: wrong_of_training(fault, setting),
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
        for setting in role.settings:
            own = scratch / setting.rstrip("=")
            own.mkdir()
            yield from _faults_below(role, setting, number, own, step)


def _faults_below(role: Role, setting: str, number: int, scratch: Path, step: int) -> Iterator[str]:
    for first in range(1, _MOST, step):
        own = scratch / f"{number}-{first}"
        own.mkdir()
        found = os.environ.get(setting)
        fault = FileFault(
            role=role.command,
            directory=own / "run" if found is None else Path(found),
            first=first,
            number=number,
            told=own / "told",
            switch=own / "switch" if role.is_switched else None,
        )
        yield role.run(fault, setting, own)
        if not fault.failed:
            return
        shutil.rmtree(own)
    yield f"{setting}: more than {_MOST} operations"


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
