"""Counts the processor time of a process and of all that it starts, beside the machine's.

    python processor_time.py

Watches its parent, in a process of its own, so that looking costs the measured program nothing. For
each line of its input it writes a line of JSON: clock ticks since it began, of the machine
(``total``), of its parent with everything that descends from it (``own``), and of all other
processes (``others``). A process stays its parent's when its own parent ends, as an agent does.

Not from the machine's own count of busy ticks: it samples, and misses much of what runs briefly.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

#: Seconds between two looks; of a process that outlived its parent, as much may not be counted.
LOOK_S = 1.0
#: The parent of the kernel's threads, which work for all.
_KERNEL_THREADS = 2


@dataclasses.dataclass(frozen=True)
class _Process:
    parent: int
    began: int
    ticks: int


class Watch:
    """Adds up the ticks of one process and of its descendants, and of all other processes."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[int, _Process] = {}
        self._ended = 0
        self._all = 0
        self.look()
        self._first, self._first_of_all = self._own(), self._all

    def look(self) -> None:
        """Reads all processes once."""
        found = _processes()
        own = {
            pid
            for pid, known in self._known.items()
            if pid in found and found[pid].began == known.began
        } | {self._root}
        # Of a process that ended, its parent has the ticks, if that one waited for it.
        for pid, known in self._known.items():
            if pid not in own and known.parent not in own:
                self._ended += known.ticks
        own = _with_descendants(own, found)
        self._known = {pid: found[pid] for pid in own if pid in found}
        # (What has ended is in the ticks of those who waited for it.)
        self._all = sum(process.ticks for process in found.values())

    def counts(self) -> tuple[int, int]:
        """Returns the ticks since the start, of its own processes and of all others."""
        self.look()
        own = self._own() - self._first
        return own, max(0, self._all - self._first_of_all - own)

    def _own(self) -> int:
        return self._ended + sum(process.ticks for process in self._known.values())


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # Numbered as in proc(5), less the two before the name's end: utime to cstime are 14 to 17.
        ticks = sum(int(field) for field in fields[11:15])
        parent = int(fields[1])
        if _KERNEL_THREADS not in (int(entry.name), parent):
            found[int(entry.name)] = _Process(parent, int(fields[19]), ticks)
    return found


def _with_descendants(roots: Collection[int], found: Mapping[int, _Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        children.setdefault(process.parent, []).append(pid)
    own = set(roots)
    to_visit = list(roots)
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            if child not in own:
                own.add(child)
                to_visit.append(child)
    return own


def seconds_by_process(root: int) -> dict[int, float]:
    """Returns the processor time so far of a process and of each that descends from it.

    A process has with its own the time of children that ended and that it waited for.
    """
    found = _processes()
    own = _with_descendants([root], found)
    return {pid: found[pid].ticks / os.sysconf("SC_CLK_TCK") for pid in own if pid in found}


def machine() -> int:
    """Returns all ticks of the machine's processors."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    return sum(map(int, fields))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Answers until its input ends."""
    watch = Watch(os.getppid())
    total = machine()
    _say("")
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_S)
        if not ready:
            watch.look()
        elif sys.stdin.readline():
            own, others = watch.counts()
            answer = {"total": machine() - total, "own": own, "others": others}
            _say(json.dumps(answer))
        else:
            return


if __name__ == "__main__":
    main()
