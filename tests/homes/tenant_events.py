"""Events of one tenant."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.events import Event


def placed(index: int, generation: int) -> Event:
    return event("slice.placed", virtual_index=index, generation=generation, slice_id="slice-0")


def event(what: str, reason: str | None = None, **data: Any) -> Event:
    return Event.of(what, source="rm", tenant="t", reason=reason, data=data)
