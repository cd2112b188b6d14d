"""What the supervisor tells of: events, for its log and for whoever shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shared_pathways_service.events import Event, OtherEvent, Scalar

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
    """Makes a `Report` that makes an event of each call."""

    def report(
        kind: str,
        *,
        source: str = "supervisor",
        tenant: str | None = None,
        slice: str | None = None,  # noqa: A002
        reason: str | None = None,
        data: Mapping[str, Scalar] | None = None,
    ) -> None:
        on_event(
            OtherEvent(
                kind=kind,
                source=source,
                tenant=tenant,
                slice=slice,
                reason=reason,
                fields=data or {},
            )
        )

    return report
