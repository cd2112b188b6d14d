"""What the embedded service uses of its machine: memory of its processes, and its disk."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import psutil

from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import read_state
from shared_pathways_service.runtime.settings import Settings

__all__ = ["load_of"]


def load_of(settings: Settings) -> dict[str, Any]:
    """Returns what this user's service uses of this machine.

    Args:
      settings: The directories of the service.

    Returns:
      ``memory`` with ``used_bytes`` of the service's processes, in which pages that they share
      count once for each, and ``total_bytes`` of the machine; null: no service runs here.
      ``disk`` with ``free_bytes`` and ``total_bytes`` of the disk of ``directory``, the state
      directory; null: there is no such directory yet.
    """
    state = read_state(RuntimePaths(settings.runtime_dir))
    runs_here = state is not None and state.supervisor.is_alive()
    return {
        "memory": _memory(state.supervisor.pid) if state is not None and runs_here else None,
        "disk": _disk(settings.state_dir),
    }


def _memory(pid: int) -> dict[str, int] | None:
    try:
        supervisor = psutil.Process(pid)
        processes = [supervisor, *supervisor.children(recursive=True)]
    except psutil.Error:
        return None
    used = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            used += process.memory_info().rss
    return {"used_bytes": used, "total_bytes": psutil.virtual_memory().total}


def _disk(directory: Path) -> dict[str, Any] | None:
    try:
        found = shutil.disk_usage(directory)
    except OSError:
        return None
    return {
        "directory": str(directory),
        "free_bytes": found.free,
        "total_bytes": found.total,
    }
