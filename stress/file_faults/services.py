"""Ends services that programs with faults have started."""

from __future__ import annotations

import shutil

from harness.deadlines import wait_until
from harness.embedded import shut_down
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import read_state
from shared_pathways_service.runtime.settings import Settings

__all__ = ["end_service"]


def end_service() -> None:
    """Ends the service, if one runs, and removes all directories, which the next program makes."""
    settings = Settings.load()
    state = read_state(RuntimePaths(settings.runtime_dir))
    shut_down()
    if state is not None:
        wait_until("the end of the service", lambda: not state.supervisor.is_alive())
    for directory in settings.directories.values():
        shutil.rmtree(directory, ignore_errors=True)
