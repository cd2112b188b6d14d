"""Runs one attempt of a submitted job, as `sps run` runs its program; the supervisor starts it.

``python -m shared_pathways_service.cli.job_runner REQUEST UID ATTEMPT SUPERVISOR_PID SOCKET_FD``

It writes the reports of `JobAttempt` to the socket, one line each. After ``running`` it starts the
program only when the supervisor answers that the start is written down: a supervisor that is killed
before leaves a job that was not started, and the next one starts it. It ends the program when the
supervisor has ended. Its exit code is that of `sps run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path

from shared_pathways_service.agent.owner import wait_for_end
from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.cli.display.output import print_error
from shared_pathways_service.cli.errors import OWN_FAILURE
from shared_pathways_service.cli.job_attempt import JobAttempt
from shared_pathways_service.cli.workload import exit_code_of
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.runtime.processes import Identity, identity_of

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Runs an attempt; returns the exit code."""
    path, uid, attempt, supervisor_pid, socket_fd = words
    try:
        supervisor = identity_of(int(supervisor_pid))
        if os.getppid() != supervisor.pid:
            raise ProcessLookupError(f"the service, process {supervisor.pid}, has ended")
        request = JobRequest.from_json(json.loads(Path(path).read_bytes()))
        # (The program inherits all others.)
        os.set_inheritable(int(socket_fd), False)
        # For the program, which inherits it. Files of this process and of its agent are in
        # directories that only this user can enter.
        if request.umask is not None:
            os.umask(request.umask)
    except (OSError, ValueError) as error:
        print_error(f"the job cannot be started: {error}")
        return OWN_FAILURE

    link = socket.socket(fileno=int(socket_fd))

    def report(line: str) -> None:
        # The supervisor may have ended.
        with contextlib.suppress(OSError):
            link.sendall(f"{line[:1000]}\n".encode())

    def confirm_start() -> None:
        with contextlib.suppress(ConnectionError):
            if link.recv(1):
                return
        raise ServiceNotReady("the service has ended")

    job = JobAttempt(
        request,
        uid,
        int(attempt),
        report,
        workdir=Path(request.workdir),
        variables=request.environment,
        confirm_start=confirm_start,
    )
    following = threading.Thread(target=_end_with, args=(supervisor, job), daemon=True)

    def work() -> int:
        following.start()
        return job.run()

    return exit_code_of(work)


def _end_with(supervisor: Identity, job: JobAttempt) -> None:
    """Ends the program when its supervisor has ended: nobody else would."""
    asyncio.run(wait_for_end(supervisor))
    job.end_program("its service has ended")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main(sys.argv[1:]))
