"""Logs of the embedded service: a directory a start, the last few kept, each file bounded."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import BinaryIO

from shared_pathways_service import constants
from shared_pathways_service.events import Event
from shared_pathways_service.runtime.glog import glog

__all__ = ["ServiceLogs", "open_log", "tail_of"]

#: Starts whose logs are kept, files of ended proxies that a start keeps, and bytes of a file.
STARTS_KEPT = 10
PROXIES_KEPT = 50
FILE_LIMIT = 16 << 20

#: A line of a log is rarely longer.
_LINE_BYTES = 400


class ServiceLogs:
    """The logs of one start of the service.

    Attributes:
      directory: Where they are.
    """

    def __init__(self, state_dir: Path) -> None:
        stamp = time.strftime("service-%Y%m%d-%H%M%S", time.gmtime())
        self.directory = state_dir / "logs" / f"{stamp}-{os.getpid()}"

    def create(self) -> None:
        """Makes the directory of this start, and removes those of starts long ago."""
        parent = self.directory.parent
        parent.mkdir(mode=0o700, exist_ok=True)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for old in sorted(parent.glob("service-*"))[:-STARTS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Returns the log of a process; a restarted one goes on in the same file."""
        return self.directory / f"{name}.log"

    @staticmethod
    def rename(old: Path, new: Path) -> Path:
        """Gives the log of a running process another name, and returns that."""
        # A tenant that comes again has a log already: its earlier proxy's.
        if new.exists():
            new.replace(new.with_suffix(".log.1"))
        return old.replace(new)

    def write_event(self, event: Event) -> None:
        """Adds a line of JSON to the supervisor's own log; a full disk is no reason to end."""
        with contextlib.suppress(OSError), open_log(self.path("supervisor")) as file:
            file.write(event.to_json().encode() + b"\n")

    def keep_small(self) -> None:
        """Bounds each file, and the number of those of proxies; called now and then."""
        try:
            self._drop_old()
            self._cut_long()
        except OSError as error:
            # A full disk is no reason to take the tenants' slices.
            glog("W", f"the logs cannot be kept small: {error}")

    def _cut_long(self) -> None:
        for path in self.directory.glob("*.log"):
            if path.stat().st_size > FILE_LIMIT:
                # Copied, not renamed: who writes has it open. Lines written meanwhile are lost.
                shutil.copyfile(path, path.with_suffix(".log.1"))
                os.truncate(path, 0)

    def _drop_old(self) -> None:
        # (Standbys too: each has a number, and one that ends at once is started again for ever.)
        for pattern in ("proxy-*", "standby-*"):
            by_age = sorted(self.directory.glob(pattern), key=lambda p: p.stat().st_mtime)
            for path in by_age[:-PROXIES_KEPT]:
                path.unlink(missing_ok=True)


def open_log(path: Path) -> BinaryIO:
    """Opens a log to append to, readable by its user only."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.fdopen(os.open(path, flags, 0o600), "ab")


def tail_of(path: Path, lines: int = constants.LOG_TAIL_LINES) -> list[str]:
    """Returns the last lines of a log; none when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - lines * _LINE_BYTES)
            file.seek(start)
            data = file.read()
    except OSError:
        return []
    found = data.decode(errors="replace").splitlines()
    # The first one may be the end of a line that began before.
    return found[-lines:] if start == 0 else found[1:][-lines:]
