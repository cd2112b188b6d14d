"""The ledger of a run: every event as a line of JSON, which survives the process.

A run that another process resumes continues in the same file.
"""

from __future__ import annotations

import json
import logging
import math
import numbers
import os
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from shared_pathways_service.elastic.errors import failure_of_files
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event, OtherEvent, Scalar
from shared_pathways_service.events.training import SnapshotTaken, TrainingStep
from shared_pathways_service.runtime.file_failures import explained

__all__ = ["LEDGER_NAME", "Ledger", "LedgerReader", "read_ledger"]

LEDGER_NAME: Final = "ledger.jsonl"

#: Events that are too frequent to sync each to disk: they survive the death of the process like the
#: others, but the last ones may be lost with the machine.
_OFTEN: Final = (TrainingStep, SnapshotTaken)
#: A URL, also in the form of a `Path` with only one of its slashes; not a Windows drive.
_OF_A_STORE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_SCALARS: Final = (str, int, float, bool, type(None))

#: The manager's argument that sets the directory.
_SETTING: Final = "directory="

_log = logging.getLogger(__name__)


class Ledger:
    """A sink that appends each event to ``ledger.jsonl``; threads may share it.

    Each line is one `write` to a file opened for appending, so a kill can damage only the last
    line. A full or missing disk is logged once, and training continues.

    Attributes:
      lost: Events that could not be written or synced.

    Raises:
      InvalidRequestError: The directory is in an object store, whose files cannot be appended to.
      PreflightError: The file cannot be opened, as on a full disk.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        path = _path(directory)
        self.lost = 0
        self._path = path
        # Two locks: writing a step must not wait while another thread syncs. Reentrant, because a
        # signal handler on this thread may write an event meanwhile.
        self._write_lock = threading.RLock()
        self._sync_lock = threading.RLock()
        with explained(path.parent, _SETTING):
            file = _opened(path)
        self._file: int | None = file
        self._torn = _ends_within_a_line(file)

    def __call__(self, event: Event) -> None:
        """Appends the event; ignores it after `close`."""
        line = _line(event)
        try:
            with self._write_lock:
                if self._file is None:
                    return
                self._append(self._file, line)
            if not isinstance(event, _OFTEN):
                self._sync()
        except OSError as error:
            self._note_loss(error)

    def close(self) -> None:
        """Closes the file; may be called again."""
        with self._sync_lock, self._write_lock:
            file, self._file = self._file, None
            if file is not None:
                try:
                    os.close(file)
                except OSError as error:  # as a network's file system, which has written late
                    self._note_loss(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _note_loss(self, error: OSError) -> None:
        if not self.lost:
            why = failure_of_files(error, self._path.parent, _SETTING) or error
            _log.warning("%s is not complete: %s", self._path, why)
        self.lost += 1

    def _append(self, file: int, line: bytes) -> None:
        data = b"\n" + line if self._torn else line
        written = os.write(file, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(f"only {written} of {len(data)} bytes were written")

    def _sync(self) -> None:
        with self._sync_lock:
            if self._file is not None:
                os.fsync(self._file)


class LedgerReader(Iterator[Event]):
    """The events of a ledger, in the order of writing, and the number of skipped other lines."""

    def __init__(self, path: Path) -> None:
        # Opened here, so that a missing ledger is reported here.
        path.stat()
        self._lines = _lines_of(path)
        self.skipped = 0

    def __next__(self) -> Event:
        for line in self._lines:
            event = _event(line)
            if event is not None:
                return event
            self.skipped += bool(line.strip())
        raise StopIteration


def read_ledger(directory: str | os.PathLike[str]) -> LedgerReader:
    """Reads a run's ledger, also while it is being written; raises FileNotFoundError."""
    return LedgerReader(_path(directory))


def _path(directory: str | os.PathLike[str]) -> Path:
    named = os.fspath(directory)
    if _OF_A_STORE.match(named):
        raise InvalidRequestError(
            "directory",
            named,
            "a directory of a file system: nothing can be appended to an object in a store",
            hint="keep the run's directory on a disk; only its checkpoints may be in a bucket",
        )
    return Path(named) / LEDGER_NAME


def _lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _opened(path: Path) -> int:
    """Opens a ledger that another process may have begun; its directory is made if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _ends_within_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _line(event: Event) -> bytes:
    """Returns the line of an event, whose numbers may be NumPy's; must not fail."""
    took = event.duration_s
    plain = OtherEvent(
        kind=event.kind,
        source=event.source,
        time=event.time,
        monotonic=event.monotonic,
        tenant=event.tenant,
        reason=event.reason,
        step=None if event.step is None else int(event.step),
        slice=None if event.slice is None else _whole_or_text(event.slice),
        duration_s=float(took) if took is not None and math.isfinite(took) else None,
        fields={name: _scalar(value) for name, value in event.data.items()},
    )
    return plain.to_json().encode() + b"\n"


def _whole_or_text(value: object) -> int | str:
    return int(value) if isinstance(value, numbers.Integral) else str(value)


def _scalar(value: object) -> Scalar:
    """Returns a value for JSON; values that are not finite or not scalars become text."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    return str(value)


def _event(line: bytes) -> Event | None:
    """Returns the event of a line; None: the line has none."""
    try:
        fields = json.loads(line)
        if not {"kind", "source", "time", "monotonic"} <= fields.keys():
            return None
        event = Event.from_dict(fields)
        moment = datetime.fromisoformat(event.time)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return event if moment.tzinfo is not None and _is_sound(event) else None


def _is_sound(event: Event) -> bool:
    """Returns whether the values from a file have the types of an event's fields."""
    return (
        isinstance(event.kind, str)
        and isinstance(event.source, str)
        and _is_number(event.monotonic)
        and (event.duration_s is None or _is_number(event.duration_s))
        and (event.step is None or type(event.step) is int)
        and (event.slice is None or type(event.slice) in {int, str})
        and isinstance(event.data, Mapping)
        and all(isinstance(value, _SCALARS) for value in event.data.values())
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
