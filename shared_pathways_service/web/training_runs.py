"""Reports on elastic training runs, for their page: those of `sps report`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from shared_pathways_service.elastic.accounting.goodput import report_of
from shared_pathways_service.elastic.run_ledger import LEDGER_NAME, read_ledger
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotFound,
    SharedPathwaysError,
    from_json,
)
from shared_pathways_service.web.seldom_read import SeldomRead

__all__ = ["TrainingRuns"]

#: The report on a run, or why there is none.
_Found: TypeAlias = dict[str, Any] | SharedPathwaysError

#: Marks, interruptions and changes of the number of slices in an answer: the last ones.
_MOST: Final = 2_000
_LONG: Final = ("marks", "incidents", "slice_counts")


class TrainingRuns:
    """Reads the ledgers of runs, each again only after it has grown.

    Args:
      directories: The directories of the runs; no others are read.

    Attributes:
      directories: The same.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self.directories = tuple(dict.fromkeys(directories))
        self._answers = SeldomRead[str, _Found](len(self.directories))

    async def report(self, directory: str, seen: str) -> dict[str, Any]:
        """Returns the report on a run.

        Args:
          directory: One of `directories`.
          seen: The ``version`` of the answer before this one; empty: this is the first.

        Returns:
          ``version``, and with another version than `seen` the fields of `Report`.

        Raises:
          InvalidRequestError: The page does not show this run.
          ServiceNotFound: The run has no ledger, or no events yet.
        """
        if directory not in self.directories:
            raise InvalidRequestError("run", directory, "a run of `sps ui --run`")
        # (One at a time: a large ledger takes a processor for seconds.)
        found = await self._answers.get(
            directory, lambda known: asyncio.to_thread(_read_if_changed, directory, known)
        )
        if isinstance(found, SharedPathwaysError):
            # A fresh one, so that no traceback keeps memory alive.
            raise from_json(found.to_json())
        return {"version": found["version"]} if found["version"] == seen else found


def _read_if_changed(directory: str, known: _Found | None) -> _Found:
    """Returns the report, or why there is none: reading a ledger without events takes as long."""
    try:
        return _report_if_changed(directory, known if isinstance(known, dict) else None)
    except SharedPathwaysError as error:
        return from_json(error.to_json())


def _report_if_changed(directory: str, known: dict[str, Any] | None) -> dict[str, Any]:
    try:
        stat = (Path(directory) / LEDGER_NAME).stat()
        version = f"{stat.st_mtime_ns}-{stat.st_size}"
        if known is not None and known["version"] == version:
            return known
        return {"version": version, **_read(directory)}
    except OSError as error:
        raise ServiceNotFound(
            f"there is no {LEDGER_NAME} in {directory}: {error.strerror}",
            hint="a run writes it as soon as it starts",
        ) from error


def _read(directory: str) -> dict[str, Any]:
    events = read_ledger(directory)
    found = report_of(events)
    if found is None:
        raise ServiceNotFound(f"{directory}/{LEDGER_NAME} has no events of elastic training")
    fields = {**found.as_fields(), "skipped_lines": events.skipped}
    return {name: rows[-_MOST:] if name in _LONG else rows for name, rows in fields.items()}
