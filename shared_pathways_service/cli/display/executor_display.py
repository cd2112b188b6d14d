"""Shows executors, for `sps status` and `sps top`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared_pathways_service.api.shown_numbers import shown_digits
from shared_pathways_service.cli.display.sizes import shown_size
from shared_pathways_service.scheduling.book.decisions import span

__all__ = ["executor_place", "shown_cpu", "shown_cpu_time", "shown_memory", "shown_ratio"]


def executor_place(executor: Mapping[str, Any]) -> str:
    """Returns the host that an executor runs on, e.g. ``slice-0, host 1``."""
    return f"{executor['slice']}, host {executor['host']}"


def shown_memory(executor: Mapping[str, Any]) -> str:
    """Returns an executor's resident memory, with its limit if it has one."""
    used, limit = executor["memory_bytes"], executor["memory_limit_bytes"]
    if used is None:
        return "-"
    return shown_size(used) if limit is None else f"{shown_size(used)} of {shown_size(limit)}"


def shown_cpu(executor: Mapping[str, Any]) -> str:
    """Returns the share of one processor that an executor uses, e.g. ``150%``."""
    percent = executor["cpu_percent"]
    return "-" if percent is None else f"{percent}%"


def shown_cpu_time(executor: Mapping[str, Any]) -> str:
    """Returns the processor time that an executor has used."""
    seconds = executor["cpu_seconds"]
    return "-" if seconds is None else span(seconds)


def shown_ratio(executor: Mapping[str, Any]) -> str:
    """Returns how many times as long programs take as on the peers, e.g. ``2.4x slow``."""
    ratio = executor["time_ratio"]
    shown = "-" if ratio is None else f"{shown_digits(ratio)}x"
    return f"{shown} slow" if executor["slow"] else shown
