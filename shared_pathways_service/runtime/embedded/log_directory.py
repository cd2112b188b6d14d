"""Manages logs of the embedded service: one directory per start, limited in number and size.

Several machines may share the parent directory, and one machine may have several services. What one
that may still run writes is not removed by the others.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import BinaryIO

from shared_pathways_service import constants
from shared_pathways_service.events import Event
from shared_pathways_service.runtime.file_failures import named
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.processes import Identity, Life, identity_of, place_name
from shared_pathways_service.runtime.user_directories import make_private

__all__ = ["ServiceLogs", "cut_log", "open_log", "tail_of"]

#: Limits: starts whose logs are kept, files of ended proxies per start, and bytes per file.
STARTS_KEPT = 10
PROXIES_KEPT = 50
FILE_LIMIT = 16 << 20
#: Seconds after which logs of another machine are old, as a running service touches its directory.
SILENT_KEPT_S = 3 * 86_400.0
TOUCH_INTERVAL_S = 3600.0

#: The file that names the process whose logs these are.
_OWNER = "service.json"
#: The usual maximum length of a line, and how many bytes are looked at for longer ones.
_LINE_BYTES = 400
_MOST_BYTES = 16 << 20


class ServiceLogs:
    """The logs of one start of the service, in one directory."""

    def __init__(self, state_dir: Path) -> None:
        stamp = time.strftime("service-%Y%m%d-%H%M%S", time.gmtime())
        self.directory = state_dir / "logs" / f"{stamp}-{place_name()}-{os.getpid()}"

    def create(self) -> None:
        """Creates the directory of this start, and removes those of old starts."""
        parent = self.directory.parent
        parent.mkdir(mode=0o700, exist_ok=True)
        self._make_own()
        others = [path for path in parent.glob("service-*") if path != self.directory]
        lives = {path: _owner_life(path) for path in others}
        ended = [path for path in others if lives[path] is Life.ENDED]
        # Starts "of the future" are from before the clock was set back, and go first.
        ended.sort(key=lambda path: (path < self.directory, path))
        # (The clock is that of the file system, as clocks of machines differ.)
        limit = self.directory.stat().st_mtime - SILENT_KEPT_S
        silent = [p for p in others if lives[p] is Life.UNKNOWN and _touched(p) < limit]
        for old in [*ended[: -(STARTS_KEPT - 1)], *silent]:
            shutil.rmtree(old, ignore_errors=True)

    def _make_own(self) -> None:
        """Makes the directory, under another name if one of another machine has the same."""
        first = self.directory
        for number in itertools.count(2):
            try:
                self.directory.mkdir(mode=0o700)
                break
            except FileExistsError:
                self.directory = first.with_name(f"{first.name}-{number}")
        owner = self.directory / _OWNER
        with named(owner), open_log(owner) as file:
            file.write(json.dumps(identity_of().to_json()).encode())

    def path(self, name: str) -> Path:
        """Returns the log of a process; a restarted process appends to the same file."""
        return self.directory / f"{name}.log"

    @staticmethod
    def rename(old: Path, new: Path) -> Path:
        """Renames the log of a running process, if possible; returns its name."""
        try:
            # A returning tenant has a log already: that of its earlier proxy.
            if new.exists():
                new.replace(new.with_suffix(".log.1"))
            return old.replace(new)
        except OSError as error:
            glog("W", f"a log keeps its name, {old}: {error}")
            return old

    def write_event(self, event: Event) -> None:
        """Appends a line of JSON to the supervisor's log; ignores a full disk."""
        with contextlib.suppress(OSError), open_log(self.path("supervisor")) as file:
            file.write(event.to_json().encode() + b"\n")

    def keep_small(self) -> None:
        """Limits the size of files and the number of proxies' files; called periodically."""
        try:
            self._drop_old()
            self._cut_long()
            self._touch()
        except OSError as error:
            # A full disk must not end tenants' work.
            glog("W", f"the logs cannot be truncated: {error}")

    def _cut_long(self) -> None:
        for path in self.directory.glob("*.log"):
            cut_log(path)

    def _touch(self) -> None:
        """Shows to other machines that this service runs."""
        if time.time() - self.directory.stat().st_mtime >= TOUCH_INTERVAL_S:
            os.utime(self.directory)

    def _drop_old(self) -> None:
        # (Also of standbys: each has a number, and one that ends at once is restarted forever.)
        for pattern in ("proxy-*", "standby-*"):
            by_age = sorted(self.directory.glob(pattern), key=lambda p: p.stat().st_mtime)
            for path in by_age[:-PROXIES_KEPT]:
                path.unlink(missing_ok=True)


def _owner_life(directory: Path) -> Life:
    """Returns what can be said of the service that a directory of logs belongs to.

    (Nothing, if it is of an earlier release, or is just being created.)
    """
    try:
        return Identity.from_json(json.loads((directory / _OWNER).read_bytes())).life()
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Life.UNKNOWN


def _touched(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:
        return math.inf  # others have just removed it


def cut_log(path: Path, keep: int | None = None) -> None:
    """Moves the content of a log that has grown too long to a second file, which it replaces.

    `keep` is the number of its last bytes that are kept there; None: all.
    """
    size = path.stat().st_size
    if size > FILE_LIMIT:
        # Copied, not renamed, because the writer has it open. Lines written meanwhile are lost.
        older = path.with_suffix(".log.1")
        older.unlink(missing_ok=True)
        with path.open("rb") as log, open_log(older) as file:
            log.seek(0 if keep is None else max(0, size - keep))
            shutil.copyfileobj(log, file)
        os.truncate(path, 0)


def open_log_if_possible(path: Path) -> BinaryIO:
    """Opens a log as `open_log` does; on a full disk the output is lost, and work goes on."""
    try:
        return open_log(path)
    except OSError as error:
        glog("W", f"the output of a process is lost: {error}")
        return Path(os.devnull).open("ab")


def open_log(path: Path) -> BinaryIO:
    """Opens a log for appending, readable by its user only.

    Its directory is made again if it was removed, for example by a cleaner.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        opened = os.open(path, flags, 0o600)
    except FileNotFoundError:
        make_private(path.parent)
        opened = os.open(path, flags, 0o600)
    return os.fdopen(opened, "ab")


def tail_of(path: Path, lines: int = constants.LOG_TAIL_LINES) -> list[str]:
    """Returns the last lines of a log; empty if it cannot be read.

    Of lines that are longer than `_MOST_BYTES` together, it returns the end.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            length = max(1, lines) * _LINE_BYTES
            while True:
                start = max(0, size - length)
                file.seek(start)
                data = file.read(size - start)
                # (The first line may be incomplete.)
                if start == 0 or data.count(b"\n") > lines or length >= _MOST_BYTES:
                    break
                length = min(4 * length, max(length, _MOST_BYTES))
    except OSError:
        return []
    # (Not at "\r" and the like: with these a program writes one line again and again.)
    found = data.decode(errors="replace").removesuffix("\n").split("\n") if data else []
    return found[-lines:] if lines else []
