"""Completes names of connections in a shell."""

from __future__ import annotations

from shared_pathways_service.agent.journal import journal_entries
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.runtime.settings import Settings

__all__ = ["connection_names"]


def connection_names(incomplete: str) -> list[str]:
    """Returns this user's connections with a prefix; none if the journal cannot be read."""
    try:
        names = {entry.name for entry in journal_entries(Settings.load())}
    except (SharedPathwaysError, OSError):
        # A message would appear in the middle of the line that is being typed.
        return []
    return sorted(name for name in names if name.startswith(incomplete))
