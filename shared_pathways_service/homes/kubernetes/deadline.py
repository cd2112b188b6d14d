"""Keeps a proxy's Job alive: extends its deadline while the session lasts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.manifests.lifetime import (
    deadline_patch,
    deadline_s,
    extension_interval_s,
)
from shared_pathways_service.runtime.backoff import Backoff

__all__ = ["DeadlineKeeper"]

#: Status codes of the API server for a deleted Job, and for a new one of the same name.
_ANOTHER_OR_NONE = ("NotFound", "Invalid")
#: Seconds, the limits of the pauses after failures.
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0

_log = logging.getLogger(__name__)


class DeadlineKeeper:
    """Extends the deadline of one Job periodically, until `close`.

    Args:
      api: The API server.
      path: The path of the Job.
      uid: The Job's UID: another Job of the same name is not touched.
      ahead_s: Seconds from now to the new deadline.
      max_lifetime_s: The limit of the deadline; None: no limit.

    Attributes:
      moved_at: When it was last extended, in seconds since the epoch; None: not yet.
    """

    def __init__(
        self, api: KubeApi, path: str, *, uid: str, ahead_s: float, max_lifetime_s: float | None
    ) -> None:
        self.moved_at: float | None = None
        self._api = api
        self._path = path
        self._uid = uid
        self._ahead_s = ahead_s
        self._max_lifetime_s = max_lifetime_s
        # The cluster's clock continues while this machine sleeps; the monotonic one does not.
        self._began, self._began_at = time.monotonic(), time.time()
        self._hurry = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._note_failure)

    def extend_now(self) -> None:
        """Extends it at once: after a sleep of this machine little of it may be left."""
        self._hurry.set()

    async def close(self) -> None:
        """Stops extending the deadline."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        regular = pause = extension_interval_s(self._ahead_s)
        backoff = Backoff(
            first_s=min(_FIRST_RETRY_S, regular), longest_s=min(_LONGEST_RETRY_S, regular)
        )
        deadline = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            self._hurry.clear()
            # (The Job counts from its start, a moment after ours.)
            age = max(time.monotonic() - self._began, time.time() - self._began_at)
            wanted = deadline_s(age, self._max_lifetime_s, ahead_s=self._ahead_s)
            if wanted == deadline:
                return
            try:
                patch = deadline_patch(wanted, self._uid)
                await self._api.patch(self._path, patch, timeout_s=regular)
                deadline, self.moved_at = wanted, time.time()
                pause = regular
                backoff.reset()
            except SharedPathwaysError as error:
                # (The watch of the Job notices more.)
                _log.warning("the deadline of %s was not extended: %s", self._path, error)
                if isinstance(error, ApiError) and error.reason in _ANOTHER_OR_NONE:
                    return
                pause = backoff.next_pause_s()

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            _log.error("the deadline of %s was not extended", self._path, exc_info=error)
