"""Finds how much memory this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

__all__ = ["usable_memory"]

_OWN_GROUPS = "/proc/self/cgroup"
#: By the controllers of a hierarchy as that file names them ("": cgroup v2): where it is mounted,
#: and the file with a group's limit.
_HIERARCHIES = {
    "": ("/sys/fs/cgroup", "memory.max"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
}


def usable_memory(read: Callable[[str], str] = lambda path: Path(path).read_text()) -> int:
    """Returns the machine's memory, or the lowest limit of a control group around this process.

    Containers, services and slices of systemd and batch jobs are such groups. In bytes.

    Args:
      read: Reads a file.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _limit_files(read):
        try:
            text = read(path).strip()
        except OSError:
            continue
        # Without a limit it is "max", or a number larger than the memory.
        if text.isdecimal():
            memory = min(memory, int(text))
    return memory


def _limit_files(read: Callable[[str], str]) -> Iterator[str]:
    """Yields the files with the limits of this process's groups and of all groups above them.

    A container may see the host's name of its group, while its own group is mounted as the
    uppermost one. That one is therefore always among them.
    """
    groups = {hierarchy: PurePosixPath("/") for hierarchy in _HIERARCHIES}
    try:
        lines = read(_OWN_GROUPS).splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in {*controllers.split(",")} & groups.keys():
            groups[controller] = PurePosixPath(path)
    for hierarchy, group in groups.items():
        mounted, limit = _HIERARCHIES[hierarchy]
        for each in (group, *group.parents):
            yield str(PurePosixPath(mounted, *each.parts[1:], limit))
