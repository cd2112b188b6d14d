"""Reads this user's submitted jobs for all open pages."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Final

from shared_pathways_service.homes.job_home import JobHome

__all__ = ["OUTPUT_LINES", "JobsFeed"]

#: The last lines of a job's output that the page shows.
OUTPUT_LINES: Final = 1000
#: Seconds for which an answer is given again: in a cluster each reading asks the API server.
_KEPT_S: Final = {"embedded": 0.5, "kubernetes": 3.0}


class JobsFeed:
    """The submitted jobs of this user, read at most once per interval for however many pages.

    Args:
      home: Makes the home of the jobs; it may read files, and is called on another thread.
    """

    def __init__(self, home: Callable[[], JobHome]) -> None:
        self._make = home
        self._home: JobHome | None = None
        self._read_at = 0.0
        self._jobs: list[dict[str, Any]] = []
        self._lock = asyncio.Lock()

    async def all_jobs(self) -> list[dict[str, Any]]:
        """Returns the jobs, the latest first, as `JobStatus` with a list for its command.

        Raises:
          SharedPathwaysError: They cannot be read.
        """
        async with self._lock:
            home = await self._at_home()
            if not self._read_at or time.monotonic() - self._read_at > _KEPT_S[home.name]:
                found = await asyncio.to_thread(home.jobs)
                self._jobs = [dataclasses.asdict(job) for job in reversed(found)]
                self._read_at = time.monotonic()
        return self._jobs

    async def output(self, name: str) -> list[str]:
        """Returns the last lines of the output of a job's program.

        Raises:
          SharedPathwaysError: There is no such job, or its output cannot be read.
        """
        home = await self._at_home()
        return list(await asyncio.to_thread(home.output, name, OUTPUT_LINES))

    async def cancel(self, name: str) -> str:
        """Ends a job; returns a sentence.

        Raises:
          SharedPathwaysError: There is no such job, or it does not end.
        """
        home = await self._at_home()
        status = await asyncio.to_thread(home.cancel, name)
        self.forget()
        return f"{name} is {status.state}"

    def forget(self) -> None:
        """Reads the jobs anew for the next page that asks."""
        self._read_at = 0.0

    async def _at_home(self) -> JobHome:
        if self._home is None:
            made = await asyncio.to_thread(self._make)
            self._home = self._home or made
        return self._home
