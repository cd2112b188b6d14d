"""Keeps an operation from settling until all parts of it have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared_pathways_service.servers.proxy.status_errors import StatusError

__all__ = ["Hold"]


class Hold:
    """Parts of one operation that have not ended. Its operation's lock guards it.

    Attributes:
      count: How many parts have not ended.
      error: The first error of a part, or of the work itself.
      made: What the work made, if it has ended before the parts.
    """

    __slots__ = ("count", "error", "made")

    def __init__(self) -> None:
        self.count = 0
        self.error: StatusError | None = None
        self.made: Sequence[Any] | None = None

    def keep(self, error: StatusError | None, made: Sequence[Any]) -> None:
        """Stores how the work ended, until its parts have."""
        self.made = made
        self.error = None if error is None else error.anew()

    def release(self, error: StatusError | None) -> Sequence[Any] | None:
        """Ends one part; returns what the work made if this was the last thing to end."""
        self.count -= 1
        self.error = self.error or error
        return None if self.count else self.made
