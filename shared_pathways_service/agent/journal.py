"""The journal: one file per session, written before a proxy is created so that it gets deleted.

Its directory may be shared by several machines, as home directories often are. An agent touches its
entry now and then, so that others can see how long it has been silent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import Identity, Life
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.runtime.user_directories import make_private
from shared_pathways_service.session.link_view import LinkView

__all__ = [
    "DRAFT",
    "SILENT_AGE_S",
    "TOUCH_INTERVAL_S",
    "Entry",
    "Journal",
    "journal_directory",
    "journal_entries",
]

#: Seconds between two touches of an entry, and after which an agent elsewhere has been silent for
#: so long that its user may strike its entry off.
TOUCH_INTERVAL_S = 60.0
SILENT_AGE_S = 900.0

_VERSION = 1
_SUFFIX = ".json"
#: The end of the name of a file that is yet to be the entry.
DRAFT = ".new"
_TOKEN = ".token"  # noqa: S105 - the end of a file name
_TOKEN_DRAFT = f"{_TOKEN}{DRAFT}"
#: Seconds after which a draft is abandoned; writers rename it at once.
_STALE_AGE_S = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One session that may have a proxy.

    Attributes:
      session: UUID; a deletion needs only this and the name.
      uid: The proxy's uid; empty until it is known.
      owner: The process that owns the session.
      state: `Snapshot.state` of the session at the last write.
      since: Start of the session, RFC 3339.
      slices: Requested instance types; empty: one of the service's first type.
      metrics: URL of the agent's metrics; empty: none.
      address: The proxy's address on this machine; empty before it has one.
      link: The resumable link to the proxy, as in `Snapshot.link`.
    """

    session: str
    name: str
    home: HomeChoice
    owner: Identity
    agent: Identity
    since: str
    uid: str = ""
    state: str = ""
    service: str = ""
    namespace: str = ""
    user: str = ""
    host: str = ""
    slices: tuple[str, ...] = ()
    metrics: str = ""
    address: str = ""
    link: LinkView | None = None

    @property
    def abandoned(self) -> bool:
        """Whether both its owner and its agent have ended, as far as it can be seen from here.

        Those of other machines that share this directory have not.
        """
        return self.owner.has_ended() and self.agent.has_ended()

    @property
    def is_elsewhere(self) -> bool:
        """Whether it belongs to another machine or container, which alone knows if it runs."""
        return Life.UNKNOWN in (self.owner.life(), self.agent.life())

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {"version": _VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """Makes the entry that `to_json` described; fields of a newer version are dropped."""
        names = {field.name for field in dataclasses.fields(cls)}
        fields = {name: value for name, value in data.items() if name in names}
        link = data.get("link")
        return cls(
            **{
                **fields,
                "link": None if link is None else LinkView.from_json(link),
                "home": HomeChoice(**data["home"]),
                "owner": Identity.from_json(data["owner"]),
                "agent": Identity.from_json(data["agent"]),
                "slices": tuple(data["slices"]),
            }
        )


class Journal:
    """The entries of one user, in a directory that only this user can enter."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_private(directory)

    def write(self, entry: Entry) -> None:
        """Writes or replaces the entry of a session; it survives a power failure."""
        draft = self._draft(entry)
        _sync(draft)
        draft.replace(self._path(entry.session))
        _sync(self._directory)

    def update(self, entry: Entry) -> None:
        """Replaces the entry; a power failure may bring back the older one."""
        self._draft(entry).replace(self._path(entry.session))

    def write_token(self, session: str, token: str) -> Path:
        """Writes the session's token to a file for its child processes; `remove` removes it."""
        path, draft = self._path(session, _TOKEN), self._path(session, _TOKEN_DRAFT)
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(token, encoding="ascii")
        return draft.replace(path)

    def token(self, session: str) -> str | None:
        """Returns the session's token; None: its proxy requires none, or it has ended."""
        try:
            return self._path(session, _TOKEN).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None

    def remove(self, session: str) -> None:
        """Removes a session's files; missing files are not an error."""
        # A killed writer may have left a draft; the entry itself is removed last.
        for suffix in (DRAFT, _TOKEN_DRAFT, _TOKEN, _SUFFIX):
            self._path(session, suffix).unlink(missing_ok=True)

    def drop_stale_drafts(self) -> None:
        """Removes drafts of writers that were killed, or could not remove them either."""
        for path in self._directory.glob(f"*{DRAFT}"):
            # (On a full disk there is no new file, and so no time.)
            with contextlib.suppress(OSError):
                if self._now() - path.stat().st_mtime > _STALE_AGE_S:
                    path.unlink()

    def touch(self, entry: Entry, token: str | None = None) -> None:
        """Shows that the session's agent runs; writes its files again if they are gone.

        Cleaners of temporary files remove those that have not been touched for days.

        Args:
          entry: The session's entry.
          token: The content of its token's file; None: it has none.
        """
        try:
            os.utime(self._path(entry.session))
        except FileNotFoundError:
            make_private(self._directory)
            self.update(entry)
        if token is not None:
            try:
                os.utime(self._path(entry.session, _TOKEN))
            except FileNotFoundError:
                self.write_token(entry.session, token)

    def silent_s(self, session: str) -> float:
        """Returns the seconds since the agent of a session last touched its entry; inf: none is."""
        try:
            touched = self._path(session).stat().st_mtime
        except FileNotFoundError:
            return math.inf
        return max(0.0, self._now() - touched)

    def _now(self) -> float:
        """Returns the time by the file system's clock, as clocks of machines differ."""
        with tempfile.NamedTemporaryFile(dir=self._directory, suffix=DRAFT) as now:
            return os.fstat(now.fileno()).st_mtime

    def read(self, session: str) -> Entry | None:
        """Returns the entry of a session; None if it is missing or unreadable."""
        try:
            data = json.loads(self._path(session).read_text(encoding="utf-8"))
            return Entry.from_json(data) if isinstance(data, dict) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def entries(self) -> list[Entry]:
        """Returns all entries, the oldest first."""
        sessions = [path.stem for path in self._directory.glob(f"*{_SUFFIX}")]
        found = [entry for entry in map(self.read, sessions) if entry]
        return sorted(found, key=lambda entry: entry.since)

    def _path(self, session: str, suffix: str = _SUFFIX) -> Path:
        return self._directory / f"{session}{suffix}"

    def _draft(self, entry: Entry) -> Path:
        draft = self._path(entry.session, DRAFT)
        draft.write_text(json.dumps(entry.to_json()), encoding="utf-8")
        return draft


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def journal_directory(settings: Settings) -> Path:
    """Returns the directory of this user's journal, which may not exist."""
    return settings.state_dir / "journal"


def journal_entries(settings: Settings) -> list[Entry]:
    """Returns all sessions in this user's journal, oldest first."""
    directory = journal_directory(settings)
    return Journal(directory).entries() if directory.is_dir() else []
