"""The names by which profiles show runs of programs: they have the client's devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["devices_of_run", "run_name"]

_PREFIX = "program on devices"


def run_name(devices: Mapping[int, int]) -> str:
    """Returns the name of a run, with the tenant's number of each of XLA's of the client."""
    return " ".join((_PREFIX, *(f"{xla}={ours}" for xla, ours in devices.items())))


def devices_of_run(name: str) -> dict[int, int] | None:
    """Returns the devices of `run_name`; None: it is another name."""
    if not name.startswith(_PREFIX):
        return None
    pairs = (pair.partition("=") for pair in name.removeprefix(_PREFIX).split())
    return {int(xla): int(ours) for xla, _, ours in pairs}
