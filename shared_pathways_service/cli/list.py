"""`sps list`: this user's connections, from the journal; what was left behind is taken down."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from shared_pathways_service.agent.client import clean_up_sessions
from shared_pathways_service.agent.journal import Entry, Journal
from shared_pathways_service.settings import Settings

__all__ = ["ListedConnection", "list_connections"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedConnection:
    """A connection as `sps list --json` shows it.

    Attributes:
      slices: How many of each instance type; null where the service's first type was asked for.
      state: The session's phase; ``orphaned`` when its agent is gone and its owner is not.
      pid: The owning process.
    """

    name: str
    home: str
    namespace: str | None
    service: str | None
    slices: dict[str, int] | None
    state: str
    since: str
    host: str | None
    pid: int

    @classmethod
    def of(cls, entry: Entry) -> ListedConnection:
        """Makes it of the journal's entry."""
        return cls(
            name=entry.name,
            home=entry.home.name,
            namespace=entry.namespace or None,
            service=entry.service or None,
            slices=dict(Counter(entry.slices)) or None,
            state=entry.state if entry.agent.is_alive() else "orphaned",
            since=entry.since,
            host=entry.host or None,
            pid=entry.owner.pid,
        )


def list_connections(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List your connections. What dead programs left behind is taken down first."""
    settings = Settings.load()
    journal = settings.state_dir / "journal"
    abandoned = [entry.session for entry in _entries(settings) if entry.abandoned]
    if abandoned:
        # (A log of its own: those are thinned out, one that all share would grow for ever.)
        log = settings.state_dir / "agents" / f"list-{os.getpid()}.log"
        error = clean_up_sessions(journal, abandoned, log)
        if error is not None:
            sys.stderr.write(f"error: {error}\n")
    listed = [ListedConnection.of(entry) for entry in _entries(settings)]
    if as_json:
        sys.stdout.write(json.dumps([dataclasses.asdict(item) for item in listed]) + "\n")
    else:
        _print_table(listed)


def _entries(settings: Settings) -> list[Entry]:
    directory = settings.state_dir / "journal"
    return Journal(directory).entries() if directory.is_dir() else []


def _print_table(listed: Sequence[ListedConnection]) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415

    if not listed:
        sys.stdout.write("no connections\n")
        return
    table = Table("NAME", "HOME", "SLICES", "STATE", "SINCE", "PID", box=None)
    for item in listed:
        slices = ", ".join(f"{name}={count}" for name, count in (item.slices or {}).items())
        table.add_row(item.name, item.home, slices, item.state, item.since, str(item.pid))
    Console(soft_wrap=True, markup=False).print(table)
