"""The policy by which streams to a resource manager are opened again."""

from __future__ import annotations

import random

__all__ = ["Backoff"]

#: Seconds. Short, because a restarted resource manager grants nothing until its workers are back.
_FIRST_S = 0.1
_LONGEST_S = 2.0


class Backoff:
    """Pauses between tries: exponential, with jitter that spreads the clients of a service."""

    def __init__(self) -> None:
        self._limit_s = _FIRST_S

    def reset(self) -> None:
        """Starts over, because a try succeeded."""
        self._limit_s = _FIRST_S

    def use_longest(self) -> None:
        """Makes the next pause one of the longest."""
        self._limit_s = _LONGEST_S

    def next_pause_s(self) -> float:
        """Returns the seconds to wait before the next try."""
        pause = self._limit_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
        self._limit_s = min(2 * self._limit_s, _LONGEST_S)
        return pause
