"""Submitted jobs while file operations of the service fail for a while, or those of `sps submit`.

A job whose submission was acknowledged runs once there is room again, or its state says why not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.deadlines import wait_until
from harness.embedded import KIND, embedded
from harness.file_faults import FileFault
from harness.programs import sps
from shared_pathways_service.runtime.embedded.job_files import JobFiles, JobRecord
from shared_pathways_service.runtime.processes import identity_of_child
from shared_pathways_service.runtime.settings import Settings
from stress.file_faults.outcomes import fault_in, sps_with
from stress.file_faults.services import end_service

__all__ = ["wrong_of_job", "wrong_of_submission"]

_NAME = "fit"
#: Notes each of its starts, and ends once it is told to.
_COUNTS = """
import pathlib, time
with open("starts", "a") as starts:
    print("started", file=starts)
while not pathlib.Path("end").exists():
    time.sleep(0.05)
pathlib.Path("ended").touch()
"""
_ENDS_S = 120.0
#: Operations that fail after the acceptance of a job that goes no further.
_FAILURES = 10


def wrong_of_job(fault: FileFault, setting: str, scratch: Path) -> str:
    """Submits a job to a service with a fault, which then ends; returns what was wrong.

    Args:
      fault: It must have a switch, which does not exist.
      setting: The variable that sets its directory.
      scratch: A directory for the job's files.
    """
    assert fault.switch is not None
    scratch.mkdir()
    with embedded(1, 0, env=fault.variables()) as service:
        fault.switch.touch()
        done = _submit(None, scratch)
        if done.returncode:
            fault.switch.unlink()
            return fault_in(done.stderr, fault, setting) or _of_refused(fault, scratch)
        # More may fail until its program runs, and at its end. (A service for which it has failed
        # tries again and again to write that.)
        accepted = len(fault.failed)
        for done_so_far in (_starts, _ends):
            wait_until(
                "its start, and its program's end",
                lambda done_so_far=done_so_far: (  # type: ignore[misc]
                    done_so_far(scratch) or _has_ended() or len(fault.failed) > accepted + _FAILURES
                ),
                seconds=_ENDS_S,
            )
            (scratch / "end").touch()
        fault.switch.unlink()
        if not identity_of_child(service.pid).is_alive():
            return f"{fault}: {fault.failed[:1]}: the service ended: {service.lines[-5:]}"
        wait_until("its end", lambda: _record() is None or _has_ended(), seconds=_ENDS_S)
        wrong = _of_ended(scratch, fault, setting)
        sps("delete", "--yes", _NAME, check=False)
        return wrong


def wrong_of_submission(fault: FileFault, setting: str, scratch: Path) -> str:
    """Submits a job with a fault, where no service runs yet; returns what was wrong.

    Args:
      fault: Of `sps submit`.
      setting: The variable that sets its directory.
      scratch: A directory for the job's files.
    """
    scratch.mkdir()
    (scratch / "end").touch()
    done = _submit(fault, scratch)
    try:
        if done.returncode:
            return fault_in(done.stderr, fault, setting) or _of_refused(fault, scratch)
        wait_until("its end", lambda: _record() is None or _has_ended(), seconds=_ENDS_S)
        return _of_ended(scratch, fault, setting)
    finally:
        end_service()


def _submit(fault: FileFault | None, scratch: Path) -> subprocess.CompletedProcess[str]:
    words = ["submit", f"--name={_NAME}", "--retries=1", f"--slices={KIND}=1", "--"]
    return sps_with(fault, *words, sys.executable, "-c", _COUNTS, directory=scratch)


def _record() -> JobRecord | None:
    return JobFiles(Settings.load().state_dir).read(_NAME)


def _has_ended() -> bool:
    record = _record()
    return record is not None and record.is_ended


def _starts(scratch: Path) -> list[str]:
    path = scratch / "starts"
    return path.read_text().splitlines() if path.exists() else []


def _ends(scratch: Path) -> bool:
    return (scratch / "ended").exists()


def _of_refused(fault: FileFault, scratch: Path) -> str:
    record = _record()
    if _starts(scratch) or (record is not None and not record.is_ended):
        return f"{fault}: {fault.failed[:1]}: it was refused, and is active: {record}"
    return ""


def _of_ended(scratch: Path, fault: FileFault, setting: str) -> str:
    record, starts = _record(), len(_starts(scratch))
    if record is None:
        return f"{fault}: {fault.failed[:1]}: the job is lost"
    if record.state == "succeeded" and _ends(scratch) and starts == 1:
        return ""
    if record.state == "failed" and not starts:
        return fault_in(record.reason, fault, setting)
    return f"{fault}: {fault.failed[:1]}: {starts} starts: {record}"
