"""What the supervisor tells of: events for whoever shows them, and lines in its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shared_pathways_service.events import Event, Scalar
from shared_pathways_service.servers.glog import glog

__all__ = ["Report", "reporter"]


class Report(Protocol):
    """Tells of one thing that happened; the arguments are fields of `Event`."""

    def __call__(
        self,
        kind: str,
        *,
        source: str = "supervisor",
        tenant: str | None = None,
        slice: str | None = None,  # noqa: A002 - the event's field
        reason: str | None = None,
        data: Mapping[str, Scalar] | None = None,
    ) -> None:
        """Tells of it."""


def reporter(on_event: Callable[[Event], None]) -> Report:
    """Makes a `Report` that logs each event and hands it on."""

    def report(
        kind: str,
        *,
        source: str = "supervisor",
        tenant: str | None = None,
        slice: str | None = None,  # noqa: A002
        reason: str | None = None,
        data: Mapping[str, Scalar] | None = None,
    ) -> None:
        event = Event(
            kind=kind, source=source, tenant=tenant, slice=slice, reason=reason, data=data or {}
        )
        glog("I", event.to_json())
        on_event(event)

    return report
