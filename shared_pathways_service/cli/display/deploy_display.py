"""Shows on standard error how a service starts: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shared_pathways_service.cli.display.output import print_note
from shared_pathways_service.cluster_state.overview import processes
from shared_pathways_service.cluster_state.readiness import Look, ServiceReadiness
from shared_pathways_service.runtime.terminal import LastingStream, lasting_console

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["display"]

Object = Mapping[str, Any]


class _Lines:
    """Prints a line whenever the reason for waiting changes, for files and pipes."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, found: ServiceReadiness, _pods: Sequence[Object]) -> None:
        """Shows the readiness of the service."""
        text = headline(found) + (f" ({found.reason})" if found.reason else "")
        if text != self._last:
            self._last = text
            print_note(text)


class _Table:
    """Draws a table with a row per pod, and redraws it on changes; the last one remains."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __call__(self, found: ServiceReadiness, pods: Sequence[Object]) -> None:
        """Shows the readiness of the service."""
        self._live.update(_picture(found, pods), refresh=True)


@contextlib.contextmanager
def display(*, quiet: bool) -> Iterator[Look]:
    """Yields a callback that shows how a service starts.

    Args:
      quiet: Whether the callback shows nothing.
    """
    if quiet:
        yield lambda _found, _pods: None
    elif not LastingStream(sys.stderr).isatty():
        yield _Lines()
    else:
        from rich.live import Live  # noqa: PLC0415 - slow to import

        with Live(console=lasting_console(sys.stderr), auto_refresh=False) as live:
            yield _Table(live)


def headline(found: ServiceReadiness) -> str:
    """Returns a sentence about the number of ready slices."""
    head = "" if found.head_ready else ", but the head is not"
    return f"{found.service.name}: {found.ready}/{found.wanted} slices are ready{head}"


def _picture(found: ServiceReadiness, pods: Sequence[Object]) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - slow to import
    from rich.table import Table as Grid  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Grid("part", "slice", "pod", "node", "restarts", "state", box=None)
    for row in processes(found, pods, ()):
        part = "head" if row["role"] == "rm" else row["role"]
        grid.add_row(
            part,
            row["slice"] or "",
            row["pod"],
            row["node"] or "-",
            str(row["restarts"]),
            Text(row["state"]),
        )
    return Group(grid, Text(headline(found)))
