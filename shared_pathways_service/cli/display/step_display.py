"""Shows the present step of a command in one line of a terminal; nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from shared_pathways_service.runtime.terminal import lasting_console

__all__ = ["showing_progress"]


@contextlib.contextmanager
def showing_progress() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a step on the standard error output, if that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.live import Live  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415

    with Live(console=lasting_console(sys.stderr), auto_refresh=False, transient=True) as live:
        yield lambda step: live.update(
            Text(f"sps: {step}", no_wrap=True, overflow="ellipsis"), refresh=True
        )
