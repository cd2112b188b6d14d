"""How a service comes up: a table on a terminal, a line a change elsewhere, on standard error."""

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
    """A line whenever something else is lacking; what is written goes to a file or a pipe."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, found: ServiceReadiness, _pods: Sequence[Object]) -> None:
        """Shows how the service stands."""
        text = headline(found) + (f" ({found.reason})" if found.reason else "")
        if text != self._last:
            self._last = text
            print_note(text)


class _Table:
    """A row a pod, redrawn as they change; what was seen last stays."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def __call__(self, found: ServiceReadiness, pods: Sequence[Object]) -> None:
        """Shows how the service stands."""
        self._live.update(_picture(found, pods), refresh=True)


@contextlib.contextmanager
def display(*, quiet: bool) -> Iterator[Look]:
    """Gives what shows a service as it comes up, for the length of the block.

    Args:
      quiet: Whether nothing is to be shown.
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
    """Returns how many slices are ready, in words."""
    head = "" if found.head_ready else ", the head is not"
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
