"""The names by which profiles show runs of programs: they have the client's devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["devices_of_run", "run_name"]

_PREFIX = "sps run on devices of a client:"


def run_name(device_ids: Iterable[int]) -> str:
    """Returns the name of a run, with the devices of its client in XLA's order."""
    return " ".join((_PREFIX, *map(str, device_ids)))


def devices_of_run(name: str) -> tuple[int, ...] | None:
    """Returns the devices of `run_name`; None: it is another name."""
    if not name.startswith(_PREFIX):
        return None
    return tuple(map(int, name.removeprefix(_PREFIX).split()))
