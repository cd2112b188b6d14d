"""What happened, as one record that every sink gets: progress, `on_event`, logs, `sps events`."""

from __future__ import annotations

import dataclasses
import json
import time as _time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["LAST_MOMENT", "Event", "Scalar"]

#: What `Event.data` may hold: JSON's scalars.
Scalar = str | int | float | bool | None

#: The first second of the year 1, and the last of the year 9999.
_FIRST_MOMENT, LAST_MOMENT = -62_135_596_800.0, 253_402_300_799.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
      kind: Dotted name, e.g. ``connect.preflight.done``, ``slice.placed``, ``slice.lost``.
      source: Who saw it: ``connect``, ``agent``, ``rm``, ``worker``, ``proxy``, ``elastic``.
      time: RFC 3339, UTC.
      monotonic: Seconds of the monotonic clock of the process that made the event.
      tenant: The tenant concerned, if one is.
      slice: The slice concerned: a physical slice's id, or a virtual slice's index.
      step: The training step, if one is concerned.
      duration_s: How long it took, in seconds, for what has a beginning and an end.
      reason: Why, in words.
      data: Anything else, flat.
    """

    kind: str
    source: str
    time: str = dataclasses.field(default_factory=lambda: rfc3339(_time.time()))
    monotonic: float = dataclasses.field(default_factory=_time.monotonic)
    tenant: str | None = None
    slice: str | int | None = None
    step: int | None = None
    duration_s: float | None = None
    reason: str | None = None
    data: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the event as plain data, absent fields left out."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["data"] = dict(self.data) or None
        return {name: value for name, value in fields.items() if value is not None}

    def to_json(self) -> str:
        """Returns the event as one line of JSON, without the newline."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Event:
        """Makes the event that `to_dict` described; fields of a newer version are dropped."""
        names = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})


def rfc3339(seconds: float) -> str:
    """Returns a moment as RFC 3339 in UTC with milliseconds.

    Args:
      seconds: Since the epoch, as `time.time` gives them; what is beyond the years 1 to 9999, which
        RFC 3339 can say, is told as their begin or end.
    """
    moment = datetime.fromtimestamp(min(max(seconds, _FIRST_MOMENT), LAST_MOMENT), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
