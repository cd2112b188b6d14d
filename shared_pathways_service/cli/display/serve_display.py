"""Shows a service for `sps serve`: a table on a terminal, lines elsewhere, JSON for programs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from shared_pathways_service.cli.display.output import make_table
from shared_pathways_service.events import Event
from shared_pathways_service.protocol import resource_manager_pb2 as pb

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["Display", "JsonLines", "LiveTable", "PlainLines", "banner", "holder_of", "plain_line"]

Status = Callable[[], Awaitable[pb.GetStatusResponse | None]]

#: Events that a table shows below it.
_LAST_EVENTS = 8


class Display(Protocol):
    """Shows events."""

    def introduce(self, text: str) -> None:
        """Shows what is about to start, before the first event."""

    def show(self, event: Event) -> None:
        """Shows one event; never raises."""

    def following(self, status: Status) -> contextlib.AbstractAsyncContextManager[None]:
        """Shows the state of the service during the block."""


class PlainLines:
    """Writes one line per event, for people who read a file or a pipe."""

    def introduce(self, text: str) -> None:
        """Writes the text."""
        _write(text)

    def show(self, event: Event) -> None:
        """Writes one line."""
        _write(plain_line(event))

    @contextlib.asynccontextmanager
    async def following(self, _status: Status) -> AsyncIterator[None]:
        """Shows nothing in addition to the events."""
        yield


class JsonLines(PlainLines):
    """Writes one line of JSON per event."""

    def introduce(self, text: str) -> None:
        """Writes nothing, because every line is an event."""

    def show(self, event: Event) -> None:
        """Writes one line."""
        _write(event.to_json())


class LiveTable:
    """Draws a table of the slices with the last events below it, and redraws it at every event."""

    def __init__(self) -> None:
        self._banner = ""
        self._events: list[str] = []
        self._changed = asyncio.Event()

    def introduce(self, text: str) -> None:
        """Puts the text above the table."""
        self._banner = text

    def show(self, event: Event) -> None:
        """Adds one event."""
        self._events = [*self._events, plain_line(event)][-_LAST_EVENTS:]
        self._changed.set()

    @contextlib.asynccontextmanager
    async def following(self, status: Status) -> AsyncIterator[None]:
        """Draws until the block ends."""
        from rich.live import Live  # noqa: PLC0415 - slow to import

        with Live(auto_refresh=False) as live:
            drawing = asyncio.create_task(self._draw(live, status))
            try:
                yield
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)
                live.update(self._picture(None), refresh=True)

    async def _draw(self, live: Live, status: Status) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            live.update(self._picture(await status()), refresh=True)

    def _picture(self, status: pb.GetStatusResponse | None) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415 - slow to import
        from rich.text import Text  # noqa: PLC0415

        events = Text("\n".join(self._events), style="dim")
        if status is None:
            return Group(Text(self._banner), events)
        users = {tenant.name: f"{tenant.user}@{tenant.host}" for tenant in status.tenants}
        rows = []
        for found in status.slices:
            holder = holder_of(found.state, found.tenant, found.virtual_index)
            user = users.get(found.tenant, "")
            since = _clock(found.since)
            rows.append((found.id, found.instance_type, found.state, holder, user, since))
        table = make_table(("slice", "type", "state", "holder", "user", "since"), rows)
        waiting = [
            Text(f"waiting, {entry.position}: {entry.tenant}: {entry.reason}")
            for entry in status.queue
        ]
        return Group(Text(self._banner), table, *waiting, events)


def banner(slices: Mapping[str, int], spares: int) -> str:
    """Returns what a service is about to start, spares included.

    Args:
      slices: Slices for requests, by instance type.
      spares: Slices of each type in addition.
    """
    counts = ", ".join(f"{count} x {kind}" for kind, count in slices.items())
    if not spares:
        return f"Starting {counts}; no spares (--spares 0): a failed slice has no replacement."
    total = sum(slices.values()) + spares * len(slices)
    each = " of each type" if len(slices) > 1 else ""
    return (
        f"Starting {total} slices: {counts}, and {spares}{each} as a spare, which replaces a "
        "failed slice and is not granted to requests (--spares 0: none)."
    )


def holder_of(state: str, tenant: str | None, virtual_index: int | None) -> str:
    """Returns the holder of a slice for tables; ``free`` for a ready slice without a holder."""
    if tenant:
        return f"{tenant}[{virtual_index}]"
    return "free" if state == "ready" else "-"


def plain_line(event: Event) -> str:
    """Returns an event as a line for people."""
    words = [_clock(event.time), event.kind]
    words += [str(word) for word in (event.slice, event.tenant) if word is not None]
    told = {"slice_id", "virtual_index"} if event.slice is not None else set()
    words += [
        f"{name}={value}"
        for name, value in event.data.items()
        if name not in told and value not in {None, ""} and "\n" not in str(value)
    ]
    if event.reason:
        words.append(f"({' '.join(event.reason.split())})")
    return " ".join(words)


def _clock(moment: str) -> str:
    """Returns the time of day of an RFC 3339 time."""
    return moment[11:19]


def _write(line: str) -> None:
    # The service has other users than a reader that has closed the pipe.
    with contextlib.suppress(OSError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
