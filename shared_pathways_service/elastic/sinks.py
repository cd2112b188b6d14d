"""Distributes events to sinks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from shared_pathways_service.events import Event
from shared_pathways_service.events.training import SaveFailed

__all__ = ["Sinks", "log_failure"]

_log = logging.getLogger(__name__)


class Sinks:
    """Sinks of events; errors of a sink are logged, and do not affect others."""

    def __init__(self) -> None:
        self._all: tuple[Callable[[Event], object], ...] = ()

    def __call__(self, event: Event) -> None:
        """Passes an event to all sinks."""
        for sink in self._all:
            try:
                sink(event)
            except Exception:  # noqa: BLE001 - a callback of the user's, mostly
                _log.exception("a sink of events failed at %s", event.kind)

    @contextlib.contextmanager
    def attached(self, sink: Callable[[Event], object]) -> Iterator[None]:
        """Adds a sink for the length of a block."""
        self._all = (*self._all, sink)
        try:
            yield
        finally:
            self._all = tuple(other for other in self._all if other is not sink)


def log_failure(event: Event) -> None:
    """Logs failures outside of training, which continues."""
    if isinstance(event, SaveFailed):
        _log.warning("%s: step %s: %s", event.kind, event.step, event.reason)
