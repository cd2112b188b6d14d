"""The processes that run functions for one session."""

from __future__ import annotations

from shared_pathways_service.servers.colocated.python_process import PythonProcess
from shared_pathways_service.servers.proxy.colocated.executor_python import ExecutorPython

__all__ = ["SessionPython"]


class SessionPython:
    """Starts processes when they are first needed.

    Args:
      devices: How many devices each has.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._here: PythonProcess | None = None
        self._on_executors: ExecutorPython | None = None

    @property
    def here(self) -> PythonProcess:
        """The process beside the proxy."""
        if self._here is None:
            self._here = PythonProcess(self._devices)
        return self._here

    @property
    def on_executors(self) -> ExecutorPython:
        """Those on executors."""
        if self._on_executors is None:
            self._on_executors = ExecutorPython()
        return self._on_executors

    def close(self) -> None:
        """Ends all of them."""
        for python in (self._here, self._on_executors):
            if python is not None:
                python.close()
