"""The base class of events, with its serialised form, and the table of names and classes."""

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

#: Modules with the classes. They are imported when a name is not known yet, because a client needs
#: few of them, and importing all takes too long.
_PARTS = ("session", "tenants", "proxy", "manager_events", "supervisor", "training")
#: Classes by event name; each class adds itself when it is defined.
_CLASSES: dict[str, type[Event]] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """The base of all events; each event name has its own class with its own fields.

    Comparisons ignore the times of events.
    Classes without own fields have no decorator: each one costs 0.5 ms at import.

    Attributes:
      kind: The dotted name, e.g. ``connect.preflight.done``; an attribute of the class.
      source: The component that observed it: ``connect``, ``agent``, ``rm``, ``worker``, ``proxy``,
        ``elastic``.
      time: RFC 3339, UTC.
      monotonic: Seconds of the monotonic clock of the process that made the event.
      tenant: The tenant concerned, if any.
      slice: The slice concerned, if any: a physical slice's id, or a virtual slice's index.
      step: The training step concerned, if any.
      duration_s: Duration in seconds, of events that end an operation.
      reason: The reason, in words.
      extra: Data from a newer version that this version does not know.
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
        """The class's own fields in their flat form: lists and objects are text."""
        return {**flatten(self, _COMMON), **self.extra}

    def to_dict(self) -> dict[str, Any]:
        """Returns the event as plain data, without absent fields."""
        fields = {name: getattr(self, name) for name in _FLAT}
        fields["data"] = dict(self.data) or None
        return {name: value for name, value in fields.items() if value is not None}

    def to_json(self) -> str:
        """Returns the event as one line of JSON, without the newline."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Event:
        """Makes the event from plain data of `to_dict`.

        An event with an unknown name becomes an `OtherEvent`. Unknown common fields are dropped.
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
        """Makes an event by its name, for example to test a function that takes events.

        Args:
          kind: The name.
          data: The event's own fields in their flat form.
          **common: Fields that every event has.
        """
        return cls.from_dict({"kind": kind, "data": data, **common})


#: Fields of the flat form, in order.
_FLAT = ("kind", *(f.name for f in dataclasses.fields(Event) if f.name != "extra"))
#: Fields that all classes have.
_COMMON = frozenset((*_FLAT, "extra"))


def common_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the common fields except `kind` from plain data of `to_dict`."""
    return {name: data[name] for name in _FLAT if name in data and name != "kind"}


def own_fields(cls: type[Event], flat: Mapping[str, Scalar]) -> dict[str, Any]:
    """Returns a class's own fields from their flat form, as in `data`."""
    return unflatten(cls, flat, _COMMON)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherEvent(Event):
    """An event without a class, from a newer version.

    Attributes:
      kind: Its dotted name.
      fields: Its `data`.
    """

    kind: str  # type: ignore[misc]  # elsewhere it is the class's
    fields: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)

    @property
    def data(self) -> Mapping[str, Scalar]:
        """The event's own fields as received."""
        return self.fields


def _class_of(kind: str) -> type[Event]:
    """Returns the class of an event name, `OtherEvent` if there is none."""
    if kind not in _CLASSES:
        for part in _PARTS:
            importlib.import_module(f"{__package__}.{part}")
    return _CLASSES.get(kind, OtherEvent)


def rfc3339(seconds: float) -> str:
    """Formats a time as RFC 3339 in UTC with milliseconds.

    Args:
      seconds: Seconds since the epoch, as from `time.time`; clamped to the years 1 to 9999, the
        range of RFC 3339.
    """
    moment = datetime.fromtimestamp(min(max(seconds, _FIRST_MOMENT), LAST_MOMENT), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
