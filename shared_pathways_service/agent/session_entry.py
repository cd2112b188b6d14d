"""Keeps the journal's entry of one session up to date."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time

from shared_pathways_service.agent.journal import TOUCH_INTERVAL_S, Entry, Journal
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.events import rfc3339
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.session.messages import Snapshot

__all__ = ["SessionEntry"]

_log = logging.getLogger(__name__)


class SessionEntry:
    """Keeps one session's entry up to date, from before its proxy exists until it is deleted."""

    def __init__(self, start: Start, journal: Journal, metrics: str) -> None:
        self._start = start
        self._journal = journal
        self._metrics = metrics
        self._entry: Entry | None = None
        self._token: str | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Writes changes, if there is an entry."""
        if self._entry is None:
            return
        try:
            self.write(snapshot)
        except OSError as error:
            # For example a full disk: the existing entry suffices for a deletion.
            _log.warning("the journal of %s is not up to date: %s", snapshot.name, error)

    async def keep_fresh(self) -> None:
        """Shows other machines, and cleaners of files, that this agent runs, until cancelled."""
        while True:
            await asyncio.sleep(TOUCH_INTERVAL_S)
            if self._entry is not None:
                try:
                    self._journal.touch(self._entry, self._token)
                except OSError as error:
                    _log.warning("the journal of %s was not touched: %s", self._entry.name, error)

    def write_token(self, token: str) -> str:
        """Writes the session's token to a file beside the entry; returns its path."""
        path = self._journal.write_token(self._start.session, token)
        self._token = token
        return str(path)

    def remove(self) -> None:
        """Removes the entry and the token after the proxy is deleted.

        If that fails, as on a disk gone bad, the next clean-up finds no proxy, and removes it.
        """
        self._entry = None
        try:
            self._journal.remove(self._start.session)
        except OSError as error:
            _log.warning("the journal keeps %s, which has ended: %s", self._start.session, error)

    def write(self, snapshot: Snapshot) -> None:
        """Writes the entry; a deletion needs the first one, so it comes before the creation."""
        before = self._entry or self._first()
        entry = dataclasses.replace(
            before,
            uid=snapshot.uid,
            state=snapshot.state,
            service=snapshot.service,
            namespace=snapshot.namespace,
            address=snapshot.address,
            link=snapshot.link,
        )
        # The fields for a deletion must survive a power failure; the rest is for `sps list`.
        if self._entry is None or entry.uid != before.uid:
            self._journal.write(entry)
        elif entry != before:
            self._journal.update(entry)
        self._entry = entry

    def _first(self) -> Entry:
        tenant = self._start.request.tenant
        return Entry(
            session=self._start.session,
            name=tenant.name,
            home=self._start.home,
            owner=self._start.owner,
            agent=identity_of(),
            since=rfc3339(time.time()),
            user=tenant.user,
            host=tenant.host,
            slices=tenant.type_names,
            metrics=self._metrics,
        )
