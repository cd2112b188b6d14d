"""The history of decisions: a table beside the grants, written in the same transaction.

Reads are split into small pieces with other work in between, so that a reader never blocks the
event loop that schedules.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.decisions import Decision

__all__ = ["MAX_AGE_S", "MAX_ROWS", "Filter", "History", "HistoryClosed", "Numbered"]

#: Retention: the maximum number of decisions, and their maximum age.
MAX_ROWS = 1_000_000
MAX_AGE_S = 90 * 86_400.0

#: Rows per piece of a read: 1 to 2 ms.
_PIECE = 250
#: Decisions that are looked at for each that is wanted: the limited part is small, but in a file
#: of an earlier release.
_LOOKED_AT = 10
#: Entries of the index by time per piece of a read: 1 ms.
_TIMES = 2000
#: The part of the decisions that may be about tenants that got no slices: a program that asks in a
#: loop must not push out who held what.
_UNSERVED_PART = 0.1
#: The minimum number of outdated rows that a write removes; small, so that each write stays short.
_PRUNED = 64

#: A decision and its number; numbers increase.
Numbered: TypeAlias = tuple[int, Decision]

_COLUMNS = tuple(field.name for field in dataclasses.fields(Decision))


def _listed(*kinds: DecisionKind) -> str:
    return f"({', '.join(f'{kind.value!r}' for kind in kinds)})"


#: Decisions about a tenant alone, not about its slices, that only one that has its gang can cause.
_SERVED = _listed(
    DecisionKind.RUNNING, DecisionKind.PREEMPTED, DecisionKind.IDLED, DecisionKind.ADOPTED
)
#: Decisions that end a tenant. One that ended while it waited has the beginning of its wait.
_ENDS = _listed(DecisionKind.RELEASED, DecisionKind.EXPIRED, DecisionKind.FORGOTTEN)
#: Selects decisions that a tenant can cause without ever getting slices, as it asks, waits, reports
#: events and ends. All others about a tenant alone count, so that a new kind pushes nothing out.
_IS_UNSERVED = (
    f"tenant <> '' AND slice = '' AND kind NOT IN {_SERVED} "
    f"AND (kind NOT IN {_ENDS} OR began IS NOT NULL)"
)
_UNSERVED_INDEX = "unserved_"
#: Its name tells of its condition: a database may come from another release.
_INDEX = f"{_UNSERVED_INDEX}{hashlib.sha256(_IS_UNSERVED.encode()).hexdigest()[:8]}"
_TABLES = (
    """CREATE TABLE IF NOT EXISTS decisions (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
        tenant TEXT NOT NULL, user TEXT NOT NULL, team TEXT NOT NULL, slice TEXT NOT NULL,
        virtual_index INTEGER, generation INTEGER NOT NULL, instance_type TEXT NOT NULL,
        reason TEXT NOT NULL, related TEXT NOT NULL, began REAL) STRICT""",
    "CREATE INDEX IF NOT EXISTS decisions_by_time ON decisions (time)",
    "CREATE INDEX IF NOT EXISTS decisions_by_tenant ON decisions (tenant, sequence)",
    f"CREATE INDEX IF NOT EXISTS {_INDEX} ON decisions (sequence) WHERE {_IS_UNSERVED}",
)
#: Indexes of what other releases limited.
_OTHER_INDEXES = (
    "SELECT name FROM sqlite_schema WHERE type = 'index' "  # noqa: S608 - as below
    f"AND (name = 'refusals' OR name GLOB '{_UNSERVED_INDEX}*') AND name <> '{_INDEX}'"
)
# The table's columns are the number, then the fields of `Decision` in their order.
_INSERT = "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BETWEEN = "SELECT * FROM decisions WHERE sequence > ? AND sequence <= ? ORDER BY sequence"
_OF_TENANT = "SELECT * FROM decisions WHERE tenant = ? AND sequence > ? ORDER BY sequence LIMIT ?"
_LAST_OF_TENANT = "SELECT * FROM decisions WHERE tenant = ? ORDER BY sequence DESC LIMIT ?"
_FROM_TIME = (
    "SELECT time, sequence FROM decisions WHERE (time, sequence) > (?, ?) "
    "ORDER BY time, sequence LIMIT ?"
)
_COUNT = "SELECT count(*) FROM decisions"
_OLDEST = "SELECT max(sequence) FROM (SELECT sequence FROM decisions ORDER BY sequence LIMIT ?)"
# (The index is named: not to use it is then an error, and does not make each write read all rows.)
_UNSERVED = f"FROM decisions INDEXED BY {_INDEX} WHERE {_IS_UNSERVED}"
_COUNT_UNSERVED = f"SELECT count(*) {_UNSERVED} AND sequence > ? AND sequence <= ?"
_DROP_UNSERVED = (
    "DELETE FROM decisions WHERE sequence IN "  # noqa: S608 - all of it is written here
    f"(SELECT sequence {_UNSERVED} ORDER BY sequence LIMIT ?)"
)
_LAST = "SELECT * FROM decisions ORDER BY sequence DESC LIMIT 1"
_LAST_OF_SERVED = (
    f"SELECT * FROM decisions WHERE sequence > ? AND NOT ({_IS_UNSERVED}) "  # noqa: S608 - as above
    "ORDER BY sequence DESC LIMIT ?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filter:
    """Selects decisions.

    Attributes:
      since: Not before this time; None: from the first.
      until: Before this time; None: to the last.
      tenant: Only of this tenant; empty: of all.
      kinds: Only these kinds, in full or the part before or after the dot; empty: all.
    """

    since: float | None = None
    until: float | None = None
    tenant: str = ""
    kinds: Sequence[str] = ()

    def takes(self, decision: Decision) -> bool:
        """Returns whether the filter selects a decision."""
        return (
            (self.since is None or decision.time >= self.since)
            and (self.until is None or decision.time < self.until)
            and self.tenant in {"", decision.tenant}
            and self._takes_kind(decision.kind)
        )

    def _takes_kind(self, kind: str) -> bool:
        return not self.kinds or not {kind, *kind.split(".", 1)}.isdisjoint(self.kinds)


class HistoryClosed(Exception):  # noqa: N818 - the server ends; not an error of the reader
    """The server ended while a history was read."""


class History:
    """The history of decisions in a database.

    Args:
      db: The database; the caller manages its transactions.
      max_rows: The maximum number of decisions.
      max_age_s: The maximum age of a decision in seconds.
      begins_at: The first number of a new history: greater than every number of a lost history
        that a follower may have received.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        *,
        max_rows: int = MAX_ROWS,
        max_age_s: float = MAX_AGE_S,
        begins_at: int = 1,
    ) -> None:
        self._db = db
        self._closed = False
        self._max_rows = max_rows
        self._max_age_s = max_age_s
        for (name,) in db.execute(_OTHER_INDEXES).fetchall():
            db.execute(f"DROP INDEX {name}")
        for statement in _TABLES:
            db.execute(statement)
        last = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'decisions'").fetchone()
        #: The number of the last decision; before the first decision, its number minus one.
        self.last: int = last[0] if last else begins_at - 1
        self._first = self._find_first()
        self._count: int = db.execute(_COUNT).fetchone()[0]
        self._unserved = self._count_unserved(0, self.last)

    def __len__(self) -> int:
        return self._count

    def _count_unserved(self, after: int, upto: int) -> int:
        count: int = self._db.execute(_COUNT_UNSERVED, (after, upto)).fetchone()[0]
        return count

    def _find_first(self) -> int:
        first = self._db.execute("SELECT min(sequence) FROM decisions").fetchone()[0]
        return first or self.last + 1

    @property
    def began(self) -> float | None:
        """The time of the first stored decision; None: there is none."""
        row = self._db.execute("SELECT time FROM decisions ORDER BY sequence LIMIT 1").fetchone()
        return row[0] if row else None

    @property
    def ended(self) -> float | None:
        """The time of the last stored decision; None: there is none."""
        row = self._db.execute(_LAST).fetchone()
        return None if row is None else _numbered(row)[1].time

    def append(self, decisions: Sequence[Decision]) -> list[Numbered]:
        """Writes decisions, within the caller's transaction; returns them with their numbers.

        A caller that cannot commit the transaction must not use the history any more.
        """
        numbered = list(enumerate(decisions, start=self.last + 1))
        rows = [(n, *(getattr(one, name) for name in _COLUMNS)) for n, one in numbered]
        self._db.executemany(_INSERT, rows)
        self._unserved += self._count_unserved(self.last, self.last + len(numbered))
        self.last += len(numbered)
        self._count += len(numbered)
        if decisions:
            self._prune(decisions[-1].time, len(decisions))
        return numbered

    async def read(
        self, wanted: Filter, *, after: int = 0, piece: int = _PIECE
    ) -> AsyncIterator[list[Numbered]]:
        """Yields the selected decisions after a number, piece by piece, the oldest first.

        Nothing else runs between the last piece and the end, so that a caller that follows new
        decisions from then on misses none.

        Raises:
          HistoryClosed: The history was closed meanwhile.
        """
        after = max(after, await self._first_since(wanted.since) - 1)
        while after < self.last:
            self._check_open()
            if wanted.tenant:
                # One tenant's decisions are few and scattered over the table.
                last = self.last
                rows = self._db.execute(_OF_TENANT, (wanted.tenant, after, piece)).fetchall()
            else:
                last = min(self.last, after + piece)
                rows = self._db.execute(_BETWEEN, (after, last)).fetchall()
            after = rows[-1][0] if wanted.tenant and len(rows) == piece else last
            found = [one for one in map(_numbered, rows) if wanted.takes(one[1])]
            if found:
                yield found
            if after < self.last:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Ends all reads, because the database is about to be closed."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise HistoryClosed

    def last_of(self, tenant: str, count: int) -> list[Decision]:
        """Returns the last decisions about a tenant, the oldest first."""
        rows = self._db.execute(_LAST_OF_TENANT, (tenant, count))
        return [_numbered(row)[1] for row in rows][::-1]

    def last_of_served(self, count: int) -> list[Decision]:
        """Returns the last decisions, the oldest first, without those of the limited part.

        The limited part are decisions that a tenant can cause without ever getting slices.
        """
        rows = self._db.execute(_LAST_OF_SERVED, (self.last - _LOOKED_AT * count, count))
        return [_numbered(row)[1] for row in rows][::-1]

    async def _first_since(self, since: float | None) -> int:
        """Returns the first number of this time or later, or a smaller number.

        If a clock was set back, earlier decisions may have later times: the index by time is read
        to its end, or until no smaller number can follow.
        """
        if since is None:
            return self._first
        first, at = self.last + 1, (since, -1)
        while first > self._first:
            self._check_open()
            rows = self._db.execute(_FROM_TIME, (*at, _TIMES)).fetchall()
            first = min([first, *(number for _, number in rows)])
            if len(rows) < _TIMES:
                break
            at = rows[-1]
            await asyncio.sleep(0)
        return first

    def _prune(self, now: float, written: int) -> None:
        """Removes some surplus or outdated decisions: more than were written, but never many."""
        some = _PRUNED + 2 * written
        surplus = self._unserved - int(self._max_rows * _UNSERVED_PART)
        if surplus > 0:
            dropped = self._db.execute(_DROP_UNSERVED, (min(surplus, some),)).rowcount
            self._unserved -= dropped
            self._count -= dropped
        upto = 0
        if self._count > self._max_rows:
            upto = self._db.execute(_OLDEST, (min(self._count - self._max_rows, some),)).fetchone()[
                0
            ]
        rows = self._db.execute(
            "SELECT max(sequence) FROM (SELECT sequence, time FROM decisions ORDER BY sequence "
            "LIMIT ?) WHERE time < ?",
            (some, now - self._max_age_s),
        ).fetchone()
        upto = max(upto, rows[0] or 0)
        if upto:
            self._unserved -= self._count_unserved(0, upto)
            deleted = self._db.execute("DELETE FROM decisions WHERE sequence <= ?", (upto,))
            self._count -= deleted.rowcount
        self._first = self._find_first()


def _numbered(row: tuple[Any, ...]) -> Numbered:
    return row[0], Decision(**dict(zip(_COLUMNS, row[1:], strict=True)))
