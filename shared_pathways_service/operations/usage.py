"""Reads how much of a service was used, and by whom, from its resource manager."""

from __future__ import annotations

import csv
import io
from typing import Any

from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = ["read_usage", "usage_as_csv", "usage_as_dict", "utilisation"]

#: First characters by which a spreadsheet takes a text for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


async def read_usage(
    manager: Manager, by: str, since: float, until: float = 0.0
) -> pb.GetUsageResponse:
    """Requests the usage of a time window, in the form of `GetUsageRequest`."""
    request = pb.GetUsageRequest(by=by, since=since, until=until)
    return await manager.ask(manager.stub.GetUsage, request, limit=timeouts.HISTORY_ANSWER)


def usage_as_dict(answer: pb.GetUsageResponse, by: str) -> dict[str, Any]:
    """Returns the output of ``sps usage --json``."""
    return {
        "since": answer.since,
        "until": answer.until,
        "by": by,
        "capacity": dict(answer.capacity),
        "rows": _rows(answer, by),
    }


def usage_as_csv(answer: pb.GetUsageResponse, by: str) -> str:
    """Returns the output of ``sps usage --csv``.

    Users name themselves, so a name that a spreadsheet would run as a formula gets an apostrophe.
    """
    text = io.StringIO()
    names = [by, "slice_seconds", "waiting_seconds", "holdings", "waits"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in _rows(answer, by):
        name = row[by] or ""
        writer.writerow({**row, by: f"'{name}" if name.startswith(_FORMULA) else name})
    return text.getvalue().removesuffix("\n")


def utilisation(answer: pb.GetUsageResponse) -> dict[str, float]:
    """Returns the share of held slices by instance type; empty if the usage is not by type."""
    held = {row.name: row.slice_s for row in answer.rows}
    if not answer.window_s or not held.keys() <= answer.capacity.keys():
        return {}
    return {
        name: held.get(name, 0.0) / (count * answer.window_s)
        for name, count in answer.capacity.items()
    }


def _rows(answer: pb.GetUsageResponse, by: str) -> list[dict[str, Any]]:
    return [
        {
            by: row.name or None,
            "slice_seconds": round(row.slice_s, 3),
            "waiting_seconds": round(row.waiting_s, 3),
            "holdings": row.holdings,
            "waits": row.waits,
        }
        for row in answer.rows
    ]
