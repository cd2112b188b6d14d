"""One attempt of a submitted job: runs its program as `sps run` does, and reports how it goes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.cli.display.output import print_note
from shared_pathways_service.cli.workload import Workload
from shared_pathways_service.errors import CapacityError, InvalidRequestError
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import HomeLost, ProxyDeleted, ProxyExited
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.embedded.job_processes import (
    job_variables,
    kill_job_processes,
)

__all__ = ["JobAttempt"]


class JobAttempt:
    """One attempt of a job.

    Args:
      request: The job.
      uid: Its identity, which its processes bear.
      attempt: The attempt's number, from 1.
      report: Called with ``running`` when the program is started, with ``lost REASON`` when the
        connection ended before the program, and with ``refused REASON`` when trying again would not
        help; on any thread.
      workdir: The program's directory.
      variables: Its variables, except those of the job and for JAX.
      home: Where its proxy is; None: as the request says.
      confirm_start: Called once ``running`` was reported, before the program is started; raises if
        it must not be.
    """

    def __init__(
        self,
        request: JobRequest,
        uid: str,
        attempt: int,
        report: Callable[[str], object],
        *,
        workdir: Path,
        variables: Mapping[str, str],
        home: HomeChoice | None = None,
        confirm_start: Callable[[], object] = lambda: None,
    ) -> None:
        self._request = request
        self._uid = uid
        self._attempt = attempt
        self._report = report
        self._workdir = workdir
        self._variables = variables
        self._home = home
        self._confirm_start = confirm_start
        self._started = threading.Event()
        self._is_lost = threading.Event()
        self._ended = threading.Event()

    def run(self) -> int:
        """Returns the exit code; raises the errors of `Workload.run`."""
        request = self._request
        try:
            os.chdir(self._workdir)
            return Workload(
                command=list(request.command),
                request=request.session,
                variables={
                    **self._variables,
                    **job_variables(request.name, self._uid, self._attempt),
                },
                tune_allocator=request.tune_allocator,
                home=self._home,
                on_event=self._on_event,
                on_start=self._on_start,
                on_end=self._on_end,
            ).run()
        except (CapacityError, InvalidRequestError) as error:
            self._report(f"refused {' '.join(error.message.split())}")
            raise

    def end_program(self, why: str) -> None:
        """Ends the program, on a thread other than that of `run`."""
        print_note(f"the program is ended: {why}")
        # (To the main thread, whose system call it interrupts, and which forwards it.)
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if not timeouts.PROGRAM_END.deadline().wait(self._ended.wait):
            kill_job_processes(self._uid)

    def _on_start(self) -> None:
        self._started.set()
        self._report("running")
        self._confirm_start()

    def _on_end(self) -> None:
        self._ended.set()
        # (Those that the program left behind; whoever started this may not be there to do it.)
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
        if not timeouts.PROGRAM_END_BY_ITSELF.deadline().wait(self._ended.wait):
            self.end_program(f"its connection was lost {timeouts.PROGRAM_END_BY_ITSELF.s:g} s ago")
