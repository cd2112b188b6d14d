"""The process of one attempt of a submitted job, which runs the program as `sps run` does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.embedded.job_processes import kill_job_processes
from shared_pathways_service.runtime.embedded.log_directory import open_log, tail_of
from shared_pathways_service.runtime.processes import Identity, identity_of_child
from shared_pathways_service.servers.supervisor.job_decisions import AttemptEnd

__all__ = ["JobRunnerProcess"]

_MODULE = "shared_pathways_service.cli.job_runner"
#: Lines of the output in which the runner's own error is.
_LAST_LINES = 5
_ERROR = "error: "


class JobRunnerProcess:
    """The process of a runner; made by `start`.

    Attributes:
      identity: The process, also after its end.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        identity: Identity,
        uid: str,
        output: Path,
        answers: asyncio.StreamWriter,
    ) -> None:
        self.identity = identity
        self._process = process
        self._uid = uid
        self._output = output
        self._answers = answers
        self._has_started = False
        self._is_refused = False
        self._lost = ""
        self._end_asked = asyncio.Event()
        self._is_cancelled = False

    @classmethod
    async def start(
        cls, *, request: Path, output: Path, uid: str, attempt: int, environment: Mapping[str, str]
    ) -> tuple[JobRunnerProcess, asyncio.StreamReader]:
        """Starts a runner; returns it, and what it reports.

        Args:
          request: The file with the job's request.
          output: The file for its output.
          uid: The mark of the job's processes.
          attempt: The number of the attempt, from 1.
          environment: Variables of the runner; those of the program are in the request.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(ours.close)
            stack.callback(theirs.close)
            file = stack.enter_context(open_log(output))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE),
                *(str(request), uid, str(attempt), str(os.getpid()), str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=(theirs.fileno(),),
                env=environment,
                cwd="/",
                # No signal of a terminal reaches it.
                start_new_session=True,
            )
            undo.callback(process.kill)
            identity = identity_of_child(process.pid)
            undo.pop_all()
        reports, answers = await asyncio.open_connection(sock=ours)
        return cls(process, identity, uid, output, answers), reports

    @property
    def is_running(self) -> bool:
        """Whether the runner has not ended."""
        return self._process.returncode is None

    def cancel(self) -> None:
        """Requests its end, because the job was cancelled."""
        self._is_cancelled = True
        self._end_asked.set()

    def stop(self) -> None:
        """Requests its end, because the service ends."""
        self._end_asked.set()

    def kill(self) -> None:
        """Kills the program and the runner at once; blocks for a moment."""
        try:
            kill_job_processes(self._uid)
        finally:
            self._signal(signal.SIGKILL)

    async def run(
        self, reports: asyncio.StreamReader, on_start: Callable[[], object]
    ) -> AttemptEnd:
        """Waits for its end, with which no process of the program is left.

        Args:
          reports: As returned by `start`.
          on_start: Called when the runner is about to start the program, which it does afterwards.
        """
        reading = asyncio.create_task(self._read(reports, on_start))
        ended = asyncio.create_task(self._process.wait())
        asked = asyncio.create_task(self._end_asked.wait())
        try:
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._terminate(ended)
            code = await ended
        finally:
            asked.cancel()
            await asyncio.to_thread(kill_job_processes, self._uid)
        try:
            await reading
        finally:
            self._answers.close()
        return AttemptEnd(
            exit_code=code,
            has_started=self._has_started,
            is_cancelled=self._is_cancelled,
            is_refused=self._is_refused,
            lost=self._lost,
            last_error=self._last_error(),
        )

    async def _terminate(self, ended: asyncio.Task[int]) -> None:
        self._signal(signal.SIGTERM)
        try:
            with contextlib.suppress(TimeoutError):
                async with within(timeouts.JOB_GRACE):
                    await asyncio.wait({ended})
            if not ended.done():
                # Its runner still closes the connection.
                await asyncio.to_thread(kill_job_processes, self._uid)
                with contextlib.suppress(TimeoutError):
                    async with within(timeouts.JOB_CLOSE):
                        await asyncio.wait({ended})
        finally:
            self._signal(signal.SIGKILL)

    async def _read(self, reports: asyncio.StreamReader, on_start: Callable[[], object]) -> None:
        """Reads lines ``running``, ``lost REASON`` and ``refused REASON``."""
        while line := (await reports.readline()).decode(errors="replace").strip():
            word, _, rest = line.partition(" ")
            if word == "running":
                self._has_started = True
                on_start()
                self._answers.write(b"\n")
            elif word == "lost":
                self._lost = rest
            elif word == "refused":
                self._is_refused = True

    def _last_error(self) -> str:
        lines = tail_of(self._output, _LAST_LINES)
        errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
        return errors[-1] if errors else ""

    def _signal(self, number: signal.Signals) -> None:
        # Not reaped as long as there is no return code, so the id is still its own.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
