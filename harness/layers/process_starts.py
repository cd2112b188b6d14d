"""Notices when this process starts another one, whoever asks for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["noticing_process_starts"]

_EVENTS = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "subprocess.Popen",
    }
)


class _Notes:
    def __init__(self) -> None:
        self.is_installed = False
        self.lists: tuple[list[str], ...] = ()

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.lists and event in _EVENTS:
            for noted in self.lists:
                noted.append(f"{event}{arguments[:2]!r}"[:300])


_notes = _Notes()


@contextlib.contextmanager
def noticing_process_starts() -> Iterator[list[str]]:
    """Gives a list, to which each start of a process in the block adds its audit event.

    `multiprocessing` raises no audit event where it does not fork.
    """
    if not _notes.is_installed:
        # It cannot be removed: one for the process's life.
        sys.addaudithook(_notes.hear)
        _notes.is_installed = True
    noted: list[str] = []
    _notes.lists = (*_notes.lists, noted)
    try:
        yield noted
    finally:
        _notes.lists = tuple(other for other in _notes.lists if other is not noted)
