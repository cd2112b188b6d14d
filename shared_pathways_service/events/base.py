"""What every event has, the form in which it travels, and the table of names and classes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import time as _time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from shared_pathways_service.events.codec import Scalar, flatten, unflatten

__all__ = ["LAST_MOMENT", "Event", "OtherEvent", "rfc3339"]

#: The first second of the year 1, and the last of the year 9999.
_FIRST_MOMENT, LAST_MOMENT = -62_135_596_800.0, 253_402_300_799.0

#: Modules with the classes. They are imported when a name is not known yet: a client needs few of
#: them, and importing all takes longer than its share of the time that an import may take.
_PARTS = ("session", "tenants", "manager_events", "supervisor", "training")
#: Name of an event to its class; each class adds itself when it is defined.
_CLASSES: dict[str, type[Event]] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened; each name has a class of its own, with fields of its own.

    Two events are equal if the same thing happened, whenever that was.
    Classes without own fields have no decorator: each one costs 0.5 ms at import.

    Attributes:
      kind: The dotted name, of the class as of each event, e.g. ``connect.preflight.done``.
      source: The part that saw it: ``connect``, ``agent``, ``rm``, ``worker``, ``proxy``,
        ``elastic``.
      time: RFC 3339, UTC.
      monotonic: Seconds of the monotonic clock of the process that made the event.
      tenant: The tenant concerned, if one is.
      slice: The slice concerned: a physical slice's id, or a virtual slice's index.
      step: The training step, if one is concerned.
      duration_s: How long it took, in seconds, for what has a beginning and an end.
      reason: Why, in words.
      extra: Data that this version does not know, as a newer one sent it.
    """

    kind: ClassVar[str] = ""

    source: str = ""
    time: str = dataclasses.field(default_factory=lambda: rfc3339(_time.time()), compare=False)
    monotonic: float = dataclasses.field(default_factory=_time.monotonic, compare=False)
    tenant: str | None = None
    slice: str | int | None = None
    step: int | None = None
    duration_s: float | None = None
    reason: str | None = None
    extra: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)

    def __init_subclass__(cls, *, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if name:
            assert name not in _CLASSES, f"two classes of {name}"
            cls.kind = name
            _CLASSES[name] = cls

    @property
    def data(self) -> Mapping[str, Scalar]:
        """The fields that only this class has, flat: lists and objects are text."""
        return {**flatten(self, _COMMON), **self.extra}

    def to_dict(self) -> dict[str, Any]:
        """Returns the event as plain data, absent fields left out."""
        fields = {name: getattr(self, name) for name in _FLAT}
        fields["data"] = dict(self.data) or None
        return {name: value for name, value in fields.items() if value is not None}

    def to_json(self) -> str:
        """Returns the event as one line of JSON, without the newline."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Event:
        """Makes the event that `to_dict` described.

        An event of a name that this version does not know is an `OtherEvent`. Common fields of a
        newer version are dropped.
        """
        kind, own = data["kind"], data.get("data")
        own = {} if own is None else own
        if isinstance(kind, str) and isinstance(own, Mapping):
            known = _class_of(kind)
            if known is not OtherEvent:
                return known(**common_fields(data), **own_fields(known, own))
        return OtherEvent(**common_fields(data), kind=kind, fields=own)

    @classmethod
    def of(cls, kind: str, *, data: Mapping[str, Scalar] | None = None, **common: Any) -> Event:
        """Makes an event by its name, as for the test of a function that takes events.

        Args:
          kind: The name.
          data: The event's own fields in their flat form.
          **common: Fields that every event has.
        """
        return cls.from_dict({"kind": kind, "data": data, **common})


#: Fields of the flat form, in their order in it.
_FLAT = ("kind", *(f.name for f in dataclasses.fields(Event) if f.name != "extra"))
#: Fields that are not among a class's own.
_COMMON = frozenset((*_FLAT, "extra"))


def common_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that every event has, but for `kind`, of what `to_dict` returned."""
    return {name: data[name] for name in _FLAT if name in data and name != "kind"}


def own_fields(cls: type[Event], flat: Mapping[str, Scalar]) -> dict[str, Any]:
    """Returns a class's own fields, of what `data` was."""
    return unflatten(cls, flat, _COMMON)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherEvent(Event):
    """An event without a class, as a newer version sent it.

    Attributes:
      kind: Its dotted name.
      fields: What its `data` is.
    """

    kind: str  # type: ignore[misc]  # elsewhere it is the class's
    fields: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)

    @property
    def data(self) -> Mapping[str, Scalar]:
        """What came with it."""
        return self.fields


def _class_of(kind: str) -> type[Event]:
    """Returns the class of events of a name, `OtherEvent` if there is none."""
    if kind not in _CLASSES:
        for part in _PARTS:
            importlib.import_module(f"{__package__}.{part}")
    return _CLASSES.get(kind, OtherEvent)


def rfc3339(seconds: float) -> str:
    """Returns a moment as RFC 3339 in UTC with milliseconds.

    Args:
      seconds: Since the epoch, as `time.time` gives them; what is beyond the years 1 to 9999, which
        RFC 3339 can say, is told as their begin or end.
    """
    moment = datetime.fromtimestamp(min(max(seconds, _FIRST_MOMENT), LAST_MOMENT), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
