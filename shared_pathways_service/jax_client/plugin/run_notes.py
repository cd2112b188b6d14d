"""Records, for `sps run`, whether its program uses the slices.

A program may choose another platform after `sps run` has started it (`JAX_PLATFORMS=cpu`,
`jax.config.update("jax_platforms", "cpu")`). It then runs on this machine and succeeds, while its
slices are idle. So each of its processes writes a line to a file that `sps run` reads at the end,
and reports on its standard error if it runs elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import sys
from pathlib import Path

__all__ = ["NOTES_VARIABLE", "PLATFORMS_VARIABLE", "Usage", "note_elsewhere", "note_use", "read"]

#: The variables that name the file, and the platforms that `sps run` has set for JAX.
NOTES_VARIABLE = "SPS_RUN_NOTES"
PLATFORMS_VARIABLE = "SPS_RUN_PLATFORMS"
_USED, _ELSEWHERE = "used", "elsewhere"


@dataclasses.dataclass(frozen=True)
class Usage:
    """Whether processes of a program used the proxy, and settings that chose another platform."""

    used: bool = False
    elsewhere: tuple[str, ...] = ()


def read(path: Path) -> Usage | None:
    """Returns the records; None if the file is gone, or cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    records = [line.split(" ", 2) for line in lines]
    elsewhere = [record[2] for record in records if record[0] == _ELSEWHERE and len(record) > 2]
    return Usage(any(record[0] == _USED for record in records), tuple(dict.fromkeys(elsewhere)))


def note_use() -> None:
    """Records that this process uses the slices."""
    _add(f"{_USED} {os.getpid()}")


def note_elsewhere(setting: str) -> None:
    """Records and reports that this process does not use the slices, because of this setting."""
    record = f"{_ELSEWHERE} {os.getpid()} {setting}"
    # (Both copies of the plug-in may run this; and workers of a program should not print it.)
    if multiprocessing.parent_process() is None and _add(record):
        sys.stderr.write(
            f"sps: this process ({os.getpid()}) runs on this machine, not on the slices that `sps "
            f"run` holds for it: {setting}. Leave the setting as `sps run` has it, "
            f"{os.environ.get(PLATFORMS_VARIABLE, '')!r}, to use them\n"
        )


def _add(record: str) -> bool:
    """Adds a record unless it exists; returns whether it was added."""
    if not (name := os.environ.get(NOTES_VARIABLE)):
        return False
    # (Appended at the current end: other processes of the program write, too.)
    flags = os.O_RDWR | os.O_APPEND
    with (
        contextlib.suppress(OSError),
        os.fdopen(os.open(name, flags), "r+", encoding="utf-8") as notes,
    ):
        if record in notes.read().splitlines():
            return False
        notes.write(f"{record}\n")
        return True
    return False
