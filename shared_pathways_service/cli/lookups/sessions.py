"""Reads this user's sessions on this machine from the journal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from shared_pathways_service.agent.clean_up import clean_up_sessions
from shared_pathways_service.agent.journal import (
    Entry,
    Journal,
    journal_directory,
    journal_entries,
)
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import CleanupError
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.session.link_view import LinkView

__all__ = [
    "clean_up_entries",
    "find_entry",
    "forget_entry",
    "link_of",
    "links_of",
    "live_entry",
    "metrics_of",
    "place_of_tenant",
]


def forget_entry(settings: Settings, entry: Entry) -> None:
    """Removes a session from the journal, without deleting anything of it."""
    Journal(journal_directory(settings)).remove(entry.session)


def find_entry(settings: Settings, name: str, place: Place) -> Entry | None:
    """Returns the latest session of a name; if a place is named, only one at that place."""
    named = [e for e in journal_entries(settings) if e.name == name and place.has(e)]
    return named[-1] if named else None


def place_of_tenant(settings: Settings, name: str | None, place: Place) -> Place:
    """Returns the place of the service that a connection of this user uses, wherever it is.

    Args:
      settings: The directory of the journal.
      name: The connection; None: none.
      place: The place that was named, which remains without a connection of that name there.

    Raises:
      InvalidRequestError: No option names its cluster.
    """
    entry = find_entry(settings, name, place) if name else None
    return place if entry is None else Place.of_service(entry)


def live_entry(settings: Settings, place: Place, name: str) -> Entry | None:
    """Returns this user's connection of a name at a place while its agent lives."""
    return next(_live_entries(settings, place, name), None)


def metrics_of(settings: Settings, place: Place, name: str | None) -> list[dict[str, Any]]:
    """Returns the metrics addresses of this user's agents, in the form of `sps status --json`.

    Args:
      settings: The directory of the journal.
      place: The place of the connections.
      name: A connection; None: all of them.
    """
    return [
        {"name": entry.name, "pid": entry.agent.pid, "metrics": entry.metrics}
        for entry in _live_entries(settings, place, name)
        if entry.metrics
    ]


def links_of(settings: Settings, place: Place, name: str | None) -> list[tuple[str, LinkView]]:
    """Returns the links of this user's connections that were lost at least once, with their names.

    Args:
      settings: The directory of the journal.
      place: The place of the connections.
      name: A connection; None: all of them.
    """
    return [
        (entry.name, link)
        for entry in _live_entries(settings, place, name)
        if (link := link_of(entry)) is not None
    ]


def link_of(entry: Entry) -> LinkView | None:
    """Returns the link of a session; None if it was not lost yet, or its agent has ended."""
    return entry.link if entry.agent.is_alive() else None


def _live_entries(settings: Settings, place: Place, name: str | None) -> Iterator[Entry]:
    for entry in journal_entries(settings):
        is_there = entry.home.name == place.home and place.has(entry)
        if is_there and name in (None, entry.name) and entry.agent.is_alive():
            yield entry


def clean_up_entries(settings: Settings, entries: Sequence[Entry]) -> CleanupError | None:
    """Starts an agent that deletes what sessions left behind, and waits for it.

    Returns:
      An error that names what could not be deleted; None: everything was.
    """
    if not entries:
        return None
    # (A separate log, because old logs are deleted: a shared one would grow without limit.)
    log = settings.state_dir / "agents" / f"clean-up-{os.getpid()}.log"
    sessions = [entry.session for entry in entries]
    return clean_up_sessions(journal_directory(settings), sessions, log)
