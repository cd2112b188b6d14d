"""How an attempt of a submitted job went, as its pod reports it: pure."""

from __future__ import annotations

import dataclasses
import json

__all__ = ["AttemptReport"]

#: Characters of a reason: the status of a pod has room for 4096 bytes.
_REASON: int = 900


@dataclasses.dataclass
class AttemptReport:
    """The termination message of a job's container.

    Attributes:
      started: When the program was started, in seconds since the epoch; None: not yet.
      lost: Why its connection ended before the program; empty: it did not.
      refused: Why trying again would not help; empty: it may.
    """

    started: float | None = None
    lost: str = ""
    refused: str = ""

    def to_text(self) -> str:
        """Returns the message."""
        return json.dumps(
            {
                "started": self.started,
                "lost": self.lost[:_REASON],
                "refused": self.refused[:_REASON],
            }
        )

    @classmethod
    def of_text(cls, text: str) -> AttemptReport:
        """Reads a message; one that is missing or damaged says nothing."""
        try:
            data = json.loads(text)
            started = data["started"]
            return cls(
                started=None if started is None else float(started),
                lost=str(data["lost"]),
                refused=str(data["refused"]),
            )
        except (ValueError, LookupError, TypeError):
            return cls()
