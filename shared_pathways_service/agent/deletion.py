"""Deletes a proxy until the deletion is confirmed, and leftovers of earlier sessions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable

import tenacity

from shared_pathways_service.agent.journal import Entry, Journal
from shared_pathways_service.errors import (
    AccessDenied,
    CleanupError,
    InvalidRequestError,
    SharedPathwaysError,
)
from shared_pathways_service.homes.base import Home
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.patience.within import within

__all__ = ["HomeMaker", "clean_up", "delete_for_certain"]

HomeMaker = Callable[[HomeChoice], Home]


_log = logging.getLogger(__name__)


async def delete_for_certain(home: Home, *, name: str, uid: str, session: str) -> bool:
    """Deletes a proxy; retries until the home confirms the deletion, or the caller cancels.

    Returns False if there was no proxy. Permanent errors, for which a retry is useless, are raised.
    """
    final = tenacity.retry_if_not_exception_type((AccessDenied, InvalidRequestError))
    transient = tenacity.retry_if_exception_type((SharedPathwaysError, OSError))
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_all(final, transient),
        wait=tenacity.wait_exponential(multiplier=0.1, max=10.0) + tenacity.wait_random(0, 0.5),
        before_sleep=lambda state: _log.warning(
            "deleting %s: %s", name, state.outcome and state.outcome.exception()
        ),
    )
    async for attempt in retrying:
        with attempt:
            async with within(timeouts.DELETION_TRY):
                return await home.delete_proxy(name, uid, session)
    raise AssertionError("tenacity tries until it succeeds or raises")


async def clean_up(
    journal: Journal,
    entries: Iterable[Entry],
    make_home: HomeMaker,
    *,
    limit: Timeout = timeouts.DELETION,
) -> CleanupError | None:
    """Deletes the proxies of these entries, in this time each, and the entries.

    Returns the error for things that could not be deleted; None: all were deleted.
    """
    left, commands = {}, []
    for entry in entries:
        try:
            await _clean_up_one(journal, entry, make_home, limit)
        except (SharedPathwaysError, OSError) as error:
            _log.warning("%s is left behind: %s", entry.name, error or "not confirmed in time")
            left[entry.name] = f"proxy {entry.name}: {error or 'not confirmed deleted in time'}"
            commands.append(entry.home.command("delete", entry.name))
    if not left:
        return None
    return CleanupError(
        f"not everything could be taken down: {'; '.join(left.values())}",
        left=[*left.values()],
        command=commands[0] if len(commands) == 1 else "sps reap",
        hint="where it ran is gone for good? `sps delete NAME --forget` strikes it off the list",
    )


async def _clean_up_one(
    journal: Journal, entry: Entry, make_home: HomeMaker, limit: Timeout
) -> None:
    home = make_home(entry.home)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(home.close)
        async with within(limit):
            await delete_for_certain(home, name=entry.name, uid=entry.uid, session=entry.session)
    journal.remove(entry.session)
    _log.info("cleaned up %s", entry.name)
