"""Completes names of connections and submitted jobs in a shell."""

from __future__ import annotations

from shared_pathways_service.agent.journal import journal_entries
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.runtime.embedded.job_files import JobFiles
from shared_pathways_service.runtime.settings import Settings

__all__ = ["connection_names", "job_names", "names_of_logs"]


def connection_names(incomplete: str) -> list[str]:
    """Returns this user's connections with a prefix; none if the journal cannot be read."""
    try:
        names = {entry.name for entry in journal_entries(Settings.load())}
    except (SharedPathwaysError, OSError):
        # A message would appear in the middle of the line that is being typed.
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def job_names(incomplete: str) -> list[str]:
    """Returns this user's jobs with a prefix; none if their files cannot be read."""
    try:
        names = [record.name for record in JobFiles(Settings.load().state_dir).records()]
    except (SharedPathwaysError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def names_of_logs(incomplete: str) -> list[str]:
    """Returns this user's connections and jobs with a prefix."""
    return sorted({*connection_names(incomplete), *job_names(incomplete)})
