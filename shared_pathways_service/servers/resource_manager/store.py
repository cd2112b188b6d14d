"""Stores the resource manager's state in a SQLite file, written before an answer is sent.

The journal is a write-ahead log with ``synchronous=FULL``: answered requests survive a kill of the
process, and a loss of power. Grants are rare and a flush takes 0.2 ms on a local disk, so the
cheaper setting, which a loss of power may set back, would save nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.persisted import (
    Persist,
    PersistedGrant,
    PersistedMark,
    Restored,
)
from shared_pathways_service.scheduling.book.plain import from_plain, to_plain
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import SliceMark
from shared_pathways_service.servers.resource_manager.history_table import (
    MAX_AGE_S,
    MAX_ROWS,
    History,
    Numbered,
)

__all__ = ["NewerState", "Store", "open_store"]

#: Version of the tables; an older file is upgraded, a newer one is not read.
_SCHEMA = 4

#: The counter that is 1 while `Restored.state_lost` holds.
_STATE_LOST = "state_lost"

#: The upgrade to the next version, by the version of a file. Older tenants are read as they are: a
#: field that is missing has a default, and `from_plain` knows the names of version 3.
_UPGRADES = {
    1: "CREATE TABLE marks (slice TEXT PRIMARY KEY, mark TEXT NOT NULL, moves_at REAL) STRICT",
    2: "CREATE TABLE reservations (name TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT",
}

_TABLES = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS grants (tenant TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS marks (
  slice TEXT PRIMARY KEY, mark TEXT NOT NULL, moves_at REAL
) STRICT;
CREATE TABLE IF NOT EXISTS reservations (name TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT;
"""


class NewerState(SharedPathwaysError):  # noqa: N818 - what has happened
    """The state file is one of a newer release, which this one cannot read."""


class Store:
    """The state file of one resource manager, locked while this object is open.

    Attributes:
      history: The history of decisions, in the same file.
    """

    def __init__(
        self,
        path: str,
        *,
        first_start: bool,
        max_rows: int = MAX_ROWS,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        """Opens the file, or creates it.

        If it is missing on a `first_start`, no slice was ever granted; otherwise the grants are not
        known.

        Raises:
          NewerState: A newer release wrote the file.
          SharedPathwaysError: Another process has locked the file, or it cannot be opened.
          ValueError: The file is not a state file, or is damaged.
        """
        self._path = path
        try:
            # It is used by one thread at a time: one opens it, and another goes on with it.
            self._db = sqlite3.connect(
                path,
                timeout=timeouts.STATE_FILE_LOCK.s,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.OperationalError as error:
            raise SharedPathwaysError(f"cannot open the state file {path}: {error}") from error
        with contextlib.ExitStack() as undo:
            undo.callback(self._db.close)
            #: The state in the file when it was opened or created.
            self.restored = self._open(first_start=first_start)
            try:
                self.history = History(
                    self._db,
                    max_rows=max_rows,
                    max_age_s=max_age_s,
                    begins_at=time.time_ns() // 1_000_000,
                )
            except sqlite3.DatabaseError as error:
                raise ValueError(str(error)) from error
            undo.pop_all()
        self._waiting: list[Decision] = []

    @property
    def has_waiting(self) -> bool:
        """Whether there are deferred decisions for `flush` to write."""
        return bool(self._waiting)

    def write(self, persist: Persist) -> list[Numbered]:
        """Writes everything in one transaction, which is on disk when this returns.

        Decisions that can wait are deferred to the next write. Returns those that this one wrote.
        """
        if persist.can_wait:
            self._waiting += persist.decisions
            return []
        counters = (
            ("last_generation", persist.last_generation),
            ("last_order", persist.last_order),
            (_STATE_LOST, persist.state_lost),
        )
        rows = [(one.request.name, json.dumps(to_plain(one))) for one in persist.grants]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO grants VALUES (?, ?)", rows)
            gone = [(tenant,) for tenant in persist.forgotten]
            self._db.executemany("DELETE FROM grants WHERE tenant = ?", gone)
            self._db.executemany("INSERT OR REPLACE INTO counters VALUES (?, ?)", counters)
            if persist.marks:
                self._write_marks(persist.marks)
            if persist.reservations or persist.reservations_over:
                self._write_reservations(persist)
            return self._append(persist.decisions)

    def _write_marks(self, marks: tuple[PersistedMark, ...]) -> None:
        over = [(one.slice_id,) for one in marks if one.mark is SliceMark.NONE]
        self._db.executemany("DELETE FROM marks WHERE slice = ?", over)
        rows = [
            (one.slice_id, str(one.mark), one.moves_at)
            for one in marks
            if one.mark is not SliceMark.NONE
        ]
        self._db.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", rows)

    def _write_reservations(self, persist: Persist) -> None:
        over = [(name,) for name in persist.reservations_over]
        self._db.executemany("DELETE FROM reservations WHERE name = ?", over)
        rows = [(one.name, json.dumps(to_plain(one))) for one in persist.reservations]
        self._db.executemany("INSERT OR REPLACE INTO reservations VALUES (?, ?)", rows)

    def note(self, decision: Decision) -> None:
        """Defers a decision of the server itself to the next write."""
        self._waiting.append(decision)

    def flush(self) -> list[Numbered]:
        """Writes the deferred decisions; returns them."""
        if not self._waiting:
            return []
        with self._transaction():
            return self._append(())

    def _append(self, decisions: tuple[Decision, ...]) -> list[Numbered]:
        waiting, self._waiting = self._waiting, []
        return self.history.append([*waiting, *decisions])

    def close(self) -> None:
        """Closes the file."""
        self.history.close()
        self._db.close()

    def _open(self, *, first_start: bool) -> Restored:
        """Opens or creates the file; returns its state."""
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
            if version == 0:
                with self._transaction():
                    for statement in _TABLES.split(";"):
                        self._db.execute(statement)
                    # A kill before the first grant must not turn a lost state into a new service.
                    row = (_STATE_LOST, not first_start)
                    self._db.execute("INSERT INTO counters VALUES (?, ?)", row)
                    self._db.execute(f"PRAGMA user_version = {_SCHEMA}")
                return self._read()
            if version > _SCHEMA:
                raise NewerState(
                    f"the state file {self._path} was written by a newer release: its version is "
                    f"{version}, and this release reads up to {_SCHEMA}",
                    hint="run that release again; --discard_state moves the file aside, which "
                    "loses grants, reservations, cordons and history",
                )
            # Check the history's pages too, which takes 0.07 s of a processor for 200,000
            # decisions: each grant is written with its decision, so an undetected damaged page
            # would fail the same write after every restart.
            check = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if check != "ok":
                raise ValueError(str(check))
            if version < _SCHEMA:
                self._upgrade(version)
            return self._read()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname in {"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR"}:
                raise ValueError(str(error)) from error
            is_locked = error.sqlite_errorname in {"SQLITE_BUSY", "SQLITE_LOCKED"}
            raise SharedPathwaysError(
                f"cannot use the state file {self._path}: {error}",
                hint="does another resource manager use it?" if is_locked else "",
            ) from error
        except sqlite3.DatabaseError as error:
            raise ValueError(str(error)) from error

    def _upgrade(self, version: int) -> None:
        """Upgrades a file of an older version, in one transaction."""
        with self._transaction():
            for older in range(version, _SCHEMA):
                self._db.execute(_UPGRADES.get(older, ""))
            self._db.execute(f"PRAGMA user_version = {_SCHEMA}")

    def _read(self) -> Restored:
        counters = dict(self._db.execute("SELECT name, value FROM counters"))
        grants = self._db.execute("SELECT data FROM grants ORDER BY tenant")
        return Restored(
            grants=tuple(from_plain(PersistedGrant, json.loads(data)) for (data,) in grants),
            last_generation=counters.get("last_generation", 0),
            last_order=counters.get("last_order", 0),
            state_lost=bool(counters.get(_STATE_LOST, False)),
            marks=tuple(
                PersistedMark(slice_id=name, mark=SliceMark(mark), moves_at=moves_at)
                for name, mark, moves_at in self._db.execute(
                    "SELECT slice, mark, moves_at FROM marks ORDER BY slice"
                )
            ),
            reservations=tuple(
                from_plain(Reservation, json.loads(data))
                for (data,) in self._db.execute("SELECT data FROM reservations ORDER BY name")
            ),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # A full disk has already rolled the transaction back; a second error would hide the
            # first.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def open_store(
    path: str,
    *,
    first_start: bool,
    discard_newer: bool = False,
    max_rows: int = MAX_ROWS,
    max_age_s: float = MAX_AGE_S,
) -> tuple[Store, str]:
    """Opens a state file; moves an unreadable one aside and creates a new one.

    Args:
      path: The file.
      first_start: As for `Store`.
      discard_newer: Whether a file of a newer release counts as unreadable.
      max_rows: As for `Store`.
      max_age_s: As for `Store`.

    Returns:
      The store, and the defect and new path of a file that was moved; empty: no file was moved.

    Raises:
      NewerState: A newer release wrote the file.
      SharedPathwaysError: Another process has locked the file, or it cannot be opened.
    """
    make = functools.partial(Store, path, max_rows=max_rows, max_age_s=max_age_s)
    try:
        return make(first_start=first_start), ""
    except (ValueError, NewerState) as error:
        if isinstance(error, NewerState) and not discard_newer:
            raise
        what = "discarded" if isinstance(error, NewerState) else f"damaged ({error})"
        aside = f"{path}.damaged-{time.time_ns()}"
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(path + suffix).rename(aside + suffix)
        damage = f"state file {path} is {what}; moved to {aside}"
        return make(first_start=False), damage
