"""Appends a session's events to the file of `--json-events`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event

__all__ = ["appended_events"]


@contextlib.contextmanager
def appended_events(
    path: Path, warn: Callable[[str], object]
) -> Iterator[Callable[[Event], object]]:
    """Opens a file for the length of the block; returns the function that appends an event.

    Args:
      path: The file.
      warn: Called with the reason when an event cannot be written. Later ones are dropped then: the
        program and its slices matter more.

    Raises:
      InvalidRequestError: The file cannot be opened.
    """
    try:
        # (Without a buffer: what cannot be written would be tried, and fail, again at the close.)
        file = path.open("ab", buffering=0)
        is_cut = _ends_within_a_line(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequestError(
            "--json-events", str(path), f"a file that can be written ({reason})"
        ) from error
    try:
        yield _EventFile(file, path, warn, is_cut=is_cut).append
    finally:
        # (A file system of a network may report only now that it is full.)
        with contextlib.suppress(OSError):
            file.close()


def _ends_within_a_line(path: Path) -> bool:
    """Whether an earlier writer was stopped within a line, as by a full disk."""
    # (A pipe or a device keeps nothing; a file may be writable only.)
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
    return False


class _EventFile:
    """A file to which events are appended until that fails."""

    def __init__(
        self, file: BinaryIO, path: Path, warn: Callable[[str], object], *, is_cut: bool
    ) -> None:
        self._file = file
        self._path = path
        self._warn = warn
        self._before = "\n" if is_cut else ""
        self._has_failed = False

    def append(self, event: Event) -> None:
        """Appends an event as a line of JSON."""
        if self._has_failed:
            return
        line = memoryview(f"{self._before}{event.to_json()}\n".encode())
        self._before = ""
        try:
            while line:
                # (Before a full disk refuses a write, it takes a part of one.)
                line = line[self._file.write(line) :]
        except OSError as error:
            self._has_failed = True
            reason = error.strerror or str(error)
            self._warn(f"no more events are written to --json-events={self._path}: {reason}")
