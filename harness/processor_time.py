"""Counts the processor time of a process and of all that it starts, beside the machine's.

    python processor_time.py

Watches its parent, in a process of its own, so that looking costs the measured program nothing. For
each line of its input it writes a line of JSON: clock ticks since it began, of the machine
(``total``, ``busy``) and of its parent with everything that descends from it (``own``). A process
stays its parent's when its own parent ends, as an agent does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
from pathlib import Path

#: Seconds between two looks; of a process that outlived its parent, as much may not be counted.
LOOK_S = 1.0


@dataclasses.dataclass(frozen=True)
class _Process:
    parent: int
    began: int
    ticks: int


class Watch:
    """Adds up the ticks of one process and of its descendants."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._known: dict[int, _Process] = {}
        self._ended = 0
        self.look()
        self._first = self._own()

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
        children: dict[int, list[int]] = {}
        for pid, process in found.items():
            children.setdefault(process.parent, []).append(pid)
        to_visit = list(own)
        while to_visit:
            for child in children.get(to_visit.pop(), ()):
                if child not in own:
                    own.add(child)
                    to_visit.append(child)
        self._known = {pid: found[pid] for pid in own if pid in found}

    def own(self) -> int:
        """Returns the ticks since the start."""
        self.look()
        return self._own() - self._first

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
        found[int(entry.name)] = _Process(int(fields[1]), int(fields[19]), ticks)
    return found


def machine() -> tuple[int, int]:
    """Returns all ticks of the machine's processors, and those in which they were not idle."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(field) for field in fields]
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Answers until its input ends."""
    watch = Watch(os.getppid())
    total, busy = machine()
    _say("")
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_S)
        if not ready:
            watch.look()
        elif sys.stdin.readline():
            own = watch.own()
            now_total, now_busy = machine()
            answer = {"total": now_total - total, "busy": now_busy - busy, "own": own}
            _say(json.dumps(answer))
        else:
            return


if __name__ == "__main__":
    main()
