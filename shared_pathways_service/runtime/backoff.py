"""The pauses between tries to open a stream or connection again."""

from __future__ import annotations

import random

__all__ = ["Backoff"]

#: Seconds. Short, because a restarted resource manager grants nothing until its workers are back.
_FIRST_S = 0.1
_LONGEST_S = 2.0


class Backoff:
    """Pauses between tries: exponential, with jitter that spreads the clients of a service.

    Args:
      first_s: Limit of the first pause, in seconds.
      longest_s: Limit of all pauses. The defaults are those for a resource manager.
    """

    def __init__(self, *, first_s: float = _FIRST_S, longest_s: float = _LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._limit_s = first_s

    def reset(self) -> None:
        """Starts over, because a try succeeded."""
        self._limit_s = self._first_s

    def use_longest(self) -> None:
        """Makes the next pause one of the longest."""
        self._limit_s = self._longest_s

    def next_pause_s(self) -> float:
        """Returns the seconds to wait before the next try."""
        pause = self._limit_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
        self._limit_s = min(2 * self._limit_s, self._longest_s)
        return pause
