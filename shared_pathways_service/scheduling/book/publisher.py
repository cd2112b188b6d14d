"""Collects changes of the book, and delivers them to the policies that consume them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    HoldingChanged,
    LineChanged,
    PoolChanged,
    PoolOpened,
    SlicesFreed,
)
from shared_pathways_service.scheduling.book.records import Pool, Tenant

__all__ = ["Publisher"]


class Publisher:
    """Delivers changes together, as an event changes the same pool many times.

    The core has changes delivered after each event and after each action, so before any policy
    acts. Each is delivered once, in the order in which the changes first occurred.
    """

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._consumers: dict[type[Change], tuple[Consumer, ...]] = defaultdict(tuple)
        self._pending: dict[Change, None] = {}
        # These have no field but their pool, so one record of each can be reused.
        self._freed, self._lines, self._changed, self._opened = (
            {pool: kind(pool) for pool in pools}
            for kind in (SlicesFreed, LineChanged, PoolChanged, PoolOpened)
        )
        # A gang has many slices: a repetition of the last change is skipped.
        self._last_freed: Pool | None = None
        self._last_held: HoldingChanged | None = None

    def subscribe(self, consumers: Mapping[type[Change], Consumer]) -> None:
        """Has changes of some kinds delivered to their consumers from now on."""
        for kind, consume in consumers.items():
            self._consumers[kind] = (*self._consumers[kind], consume)

    def publish(self, change: Change) -> None:
        """Has a change delivered with the others."""
        self._pending[change] = None

    def deliver(self) -> None:
        """Passes all changes to their consumers."""
        if not self._pending:
            return
        changes, self._pending = self._pending, {}
        self._last_freed = self._last_held = None
        consumers = self._consumers
        for change in changes:
            for consume in consumers[type(change)]:
                consume(change)

    def open_at_once(self, pool: Pool) -> None:
        """Has a pool served again: for consumers of other changes, while these are delivered."""
        for consume in self._consumers[PoolOpened]:
            consume(self._opened[pool])

    # ---- changes that many events make

    def slices_freed(self, pool: Pool) -> None:
        """Publishes `SlicesFreed`."""
        if pool is not self._last_freed:
            self._last_freed = pool
            self._pending[self._freed[pool]] = None

    def line_changed(self, pools: Iterable[Pool]) -> None:
        """Publishes `LineChanged` of some pools."""
        for pool in pools:
            self._pending[self._lines[pool]] = None

    def pool_changed(self, pool: Pool) -> None:
        """Publishes `PoolChanged`."""
        self._pending[self._changed[pool]] = None

    def pool_opened(self, pool: Pool) -> None:
        """Publishes `PoolOpened`."""
        self._pending[self._opened[pool]] = None

    def holding_changed(self, pool: Pool, tenant: Tenant) -> None:
        """Publishes `HoldingChanged`."""
        last = self._last_held
        if last is None or last.pool is not pool or last.tenant is not tenant:
            self._last_held = last = HoldingChanged(pool, tenant)
            self._pending[last] = None
