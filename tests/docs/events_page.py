"""Writes the page of events: every event that has a class, with its fields."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import ModuleType

from shared_pathways_service.events import (
    Event,
    manager_events,
    proxy,
    session,
    supervisor,
    tenants,
    training,
)
from shared_pathways_service.events.recorded_decisions import RecordedDecision
from tests.docs import docstrings
from tests.docs.markdown import code, page, table

__all__ = ["text"]

_HEAD = """# Events
`on_event=` of `connect()` is called with an event whenever something happens to the connection.
Each event is an object of a class below:

```python
from shared_pathways_service.events import Event
from shared_pathways_service.events.tenants import SlicePlaced, TenantQueued


def show(event: Event) -> None:
    match event:
        case SlicePlaced():
            print(f"virtual slice {event.virtual_index} is on {event.slice_id}")
        case TenantQueued(position=position):
            print(f"waiting at position {position}")
        case _:
            print(event.kind, event.reason or "")
```

Every event has the fields of [Event](api.md#event), each None where it does not apply. `kind` is
its name. `data` has the fields of its class, in the flat form of `to_dict()` and of
`sps run --json-events`: a list is text with newlines, or with commas if it is of numbers; an object
is JSON; most fields that are None or empty are left out.

Events of a newer version that have no class here are `OtherEvent`: their fields are in `data`."""

_PARTS: Mapping[str, ModuleType] = {
    "Connections and proxies": session,
    "Tenants and slices": tenants,
    "Reports of proxies": proxy,
    "The resource manager": manager_events,
    "The embedded service": supervisor,
    "Elastic training": training,
}

_DECISIONS = """`sps events` shows the history of the resource manager, whose entries are
`RecordedDecision` of the module `shared_pathways_service.events.recorded_decisions`. `kind` is one
of the [words for decisions](words.md#decisions-of-the-resource-manager). The fields: {fields}"""


def text() -> str:
    """Returns the page."""
    parts = [_HEAD]
    for title, module in _PARTS.items():
        parts += [f"## {title}", f"Module `{module.__name__}`."]
        parts.append(table(("name", "class", "what happened", "fields"), _rows(module)))
    parts += ["## Decisions", _DECISIONS.format(fields=_fields(RecordedDecision))]
    return page(parts)


def _rows(module: ModuleType) -> Iterator[tuple[str, ...]]:
    classes: list[type[Event]] = [getattr(module, name) for name in module.__all__]
    for kind, cls in sorted((cls.kind, cls) for cls in classes if cls.kind):
        yield code(kind), code(cls.__name__), docstrings.summary(cls), _fields(cls)


def _fields(cls: type[Event]) -> str:
    """Returns what a class and those between it and `Event` say of their fields."""
    between = itertools.takewhile(lambda base: base is not Event, cls.__mro__)
    fields = [field for base in between for field in docstrings.attributes(base)]
    return " ".join(f"{code(name)}: {what}" for name, what in fields)
