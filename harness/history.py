"""What git knows of this checkout: the commit, and how much has changed since an earlier one."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["age", "date_of", "first_kept", "head", "is_changed", "resolve"]

ROOT = Path(__file__).parents[1]
#: What a run itself may change.
_WRITTEN = (":(exclude)*results/*", ":(exclude)docs/*")


def _git(*arguments: str) -> str | None:
    """Returns what git prints; None where there is no git, no repository or no such commit."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def head() -> str | None:
    """Returns the commit that is checked out."""
    return _git("rev-parse", "HEAD")


def is_changed() -> bool | None:
    """Returns whether tracked files differ from the commit, apart from kept results and pages."""
    told = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN)
    return None if told is None else bool(told)


@functools.cache
def resolve(commit: str) -> str | None:
    """Returns a commit's whole name; None if this history does not have it."""
    return _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")


def date_of(commit: str) -> str | None:
    """Returns the day of a commit."""
    return _git("show", "--no-patch", "--format=%cs", commit)


def first_kept(path: str) -> str | None:
    """Returns the commit in which a file got the content that it has, also by another name."""
    return _git("log", "--follow", "-1", "--diff-filter=AM", "--format=%H", "--", path) or None


def age(commit: str, paths: Sequence[str], until: str = "HEAD") -> int | None:
    """Returns how many commits after `commit` changed something in `paths`; None if not known."""
    if resolve(commit) is None or resolve(until) is None:
        return None
    counted = _git("rev-list", "--count", f"{commit}..{until}", "--", *paths)
    return None if counted is None else int(counted)
