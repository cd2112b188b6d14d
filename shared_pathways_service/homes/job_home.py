"""The interface of a home for submitted jobs; its calls block, and may be made on any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shared_pathways_service.api.job_requests import JobRequest, JobStatus

__all__ = ["JobHome", "OnStatus", "Tell"]

#: Called with the state of a job.
OnStatus = Callable[[JobStatus], object]
#: Called with a few words on what a call does now, on any thread.
Tell = Callable[[str], object]


class JobHome(Protocol):
    """The submitted jobs of this user in one home.

    Methods with the name of a job raise `ServiceNotFound` if there is none of that name.
    """

    name: str

    def submit(self, request: JobRequest, tell: Tell = lambda _step: None) -> None:
        """Starts a job; returns once it outlives this process.

        Args:
          request: The job.
          tell: Called with each step that may take long.

        Raises:
          InvalidRequestError: The service refuses the request, or an active job has its name.
          ServiceNotReady: The service does not answer, or cannot be started.
        """

    def jobs(self) -> Sequence[JobStatus]:
        """Returns all jobs, also those that ended not long ago, the oldest first."""

    def job(self, name: str) -> JobStatus:
        """Returns a job."""

    def cancel(self, name: str) -> JobStatus:
        """Ends a job; returns it once it has ended."""

    def delete(self, name: str) -> None:
        """Removes the files of a job that has ended; raises InvalidRequestError if it has not."""

    def output(self, name: str, lines: int) -> list[str]:
        """Returns the last lines of the output of a job's program."""

    def follow(
        self, name: str, lines: int, show: Callable[[str], object], on_status: OnStatus
    ) -> JobStatus:
        """Shows the output of a job's program until the job has ended; returns the job then.

        Args:
          name: The job.
          lines: The number of last lines to begin with.
          show: Called with each line.
          on_status: Called when the state has changed.
        """

    def wait(self, name: str, timeout_s: float) -> JobStatus:
        """Returns a job once it has ended, or after the timeout."""
