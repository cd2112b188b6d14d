"""Runs one attempt of a submitted job, as `sps run` runs its program; the supervisor starts it.

``python -m shared_pathways_service.cli.job_runner REQUEST UID ATTEMPT SUPERVISOR_PID REPORT_FD``

It reports ``running`` when it starts the program, ``lost REASON`` when the connection ended before
the program, and ``refused`` when trying again would not help, one line each. It ends the program
when the supervisor has ended, and some time after the connection was lost. Its exit code is that of
`sps run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from shared_pathways_service.agent.owner import wait_for_end
from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.cli.display.output import print_error, print_note
from shared_pathways_service.cli.errors import OWN_FAILURE
from shared_pathways_service.cli.workload import Workload, exit_code_of
from shared_pathways_service.errors import CapacityError, InvalidRequestError
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import HomeLost, ProxyDeleted, ProxyExited
from shared_pathways_service.runtime.embedded.job_processes import (
    job_variables,
    kill_job_processes,
)
from shared_pathways_service.runtime.processes import Identity, identity_of

__all__ = ["main"]

#: Seconds for a program to end by itself after its connection was lost, and after SIGTERM.
_NOTICE_S = 30.0
_GRACE_S = 5.0


class _Runner:
    """One attempt of a job."""

    def __init__(self, request: JobRequest, uid: str, attempt: int, report_fd: int) -> None:
        self._request = request
        self._uid = uid
        self._attempt = attempt
        self._report_fd = report_fd
        self._started = threading.Event()
        self._is_lost = threading.Event()
        self._ended = threading.Event()

    def run(self, supervisor: Identity) -> int:
        """Returns the exit code."""
        threading.Thread(target=self._follow, args=(supervisor,), daemon=True).start()
        request = self._request
        try:
            os.chdir(request.workdir)
            return Workload(
                command=list(request.command),
                request=request.session,
                variables={
                    **request.environment,
                    **job_variables(request.name, self._uid, self._attempt),
                },
                tune_allocator=request.tune_allocator,
                on_event=self._on_event,
                on_start=self._on_start,
                on_end=self._on_end,
            ).run()
        except (CapacityError, InvalidRequestError):
            self._report("refused")
            raise

    def _follow(self, supervisor: Identity) -> None:
        """Ends the program when its supervisor has ended: nobody else would."""
        asyncio.run(wait_for_end(supervisor))
        self._end_program("its service has ended")

    def _on_start(self) -> None:
        self._started.set()
        self._report("running")

    def _on_end(self) -> None:
        self._ended.set()
        # (Those that the program left behind; the supervisor may not be there to do it.)
        kill_job_processes(self._uid)

    def _on_event(self, event: Event) -> None:
        is_running = self._started.is_set() and not self._ended.is_set()
        is_end = isinstance(event, ProxyExited | ProxyDeleted | HomeLost)
        if not is_end or not is_running or self._is_lost.is_set():
            return
        self._is_lost.set()
        reason = " ".join((event.reason or "its proxy has ended").split())
        self._report(f"lost {reason}")
        threading.Thread(target=self._end_after_loss, daemon=True).start()

    def _end_after_loss(self) -> None:
        if not self._ended.wait(_NOTICE_S):
            self._end_program(f"its connection was lost {_NOTICE_S:g} s ago")

    def _end_program(self, why: str) -> None:
        print_note(f"the program is ended: {why}")
        # (To the main thread, whose system call it interrupts, and which forwards it.)
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if not self._ended.wait(_GRACE_S):
            kill_job_processes(self._uid)

    def _report(self, line: str) -> None:
        # The supervisor may have ended.
        with contextlib.suppress(OSError):
            os.write(self._report_fd, f"{line[:1000]}\n".encode())


def main(words: list[str]) -> int:
    """Runs an attempt; returns the exit code."""
    path, uid, attempt, supervisor_pid, report_fd = words
    try:
        supervisor = identity_of(int(supervisor_pid))
        if os.getppid() != supervisor.pid:
            raise ProcessLookupError(f"the service, process {supervisor.pid}, has ended")
        request = JobRequest.from_json(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        print_error(f"the job cannot be started: {error}")
        return OWN_FAILURE
    runner = _Runner(request, uid, int(attempt), int(report_fd))
    return exit_code_of(lambda: runner.run(supervisor))


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main(sys.argv[1:]))
