"""Finds and kills the processes of a submitted job's program, also those that it left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.processes import Identity, identity_of, signal_process

__all__ = ["job_variables", "kill_job_processes"]

_MARK = "SPS_JOB_ID"
#: Seconds between two looks at killed processes.
_LOOK_S = 0.02


def job_variables(name: str, uid: str, attempt: int) -> Mapping[str, str]:
    """Returns the variables of a job's program by which its processes are found."""
    return {"SPS_JOB_NAME": name, _MARK: uid, "SPS_JOB_ATTEMPT": str(attempt)}


def kill_job_processes(uid: str) -> int:
    """Kills all processes of a job's program; returns their number once they have ended.

    They inherit the mark, so that those are found as well that have left the program's session.
    """
    killed: set[Identity] = set()
    deadline = timeouts.KILLED_PROCESSES.deadline()
    # (Repeated, because a process may start another one before it is killed. One that is just
    # ending has no variables any more, but may still hold files and memory.)
    while (found := _marked(uid) | {one for one in killed if one.is_alive()}) and deadline.left_s:
        for process in found:
            signal_process(process, signal.SIGKILL)
        killed |= found
        time.sleep(_LOOK_S)
    return len(killed)


def _marked(uid: str) -> set[Identity]:
    import psutil  # noqa: PLC0415 - slow to import

    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == uid:
                found.add(identity_of(process.pid))
        except (psutil.Error, ProcessLookupError):
            # Another user's, or one that has just ended.
            continue
    return found
