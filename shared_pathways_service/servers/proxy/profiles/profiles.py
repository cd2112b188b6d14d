"""The profiles of this proxy, of which there is one at a time."""

from __future__ import annotations

import contextlib
import threading
import time

from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.engine.engine import Engine
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.memory import HostMemory
from shared_pathways_service.servers.proxy.profiles.own_process import OwnProcess
from shared_pathways_service.servers.proxy.profiles.planes import Device
from shared_pathways_service.servers.proxy.profiles.profile_run import Profile
from shared_pathways_service.servers.proxy.profiles.profiled_executor import ExecutorProcess
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels, RecordedProcess

__all__ = ["Profiles"]


class Profiles:
    """Begins profiles of the engine's processes, one at a time. Thread-safe."""

    def __init__(self, engine: Engine, limits: Limits, memory: HostMemory) -> None:
        self._engine = engine
        self._limits = limits
        self._memory = memory
        self._lock = threading.Lock()
        self._since: float | None = None

    @property
    def most_s(self) -> int:
        """The seconds after which a profile ends by itself."""
        return self._limits.trace_s

    def begin(self, levels: Levels) -> Profile:
        """Begins a profile; `Profile.drop` must follow.

        Raises:
          StatusError: FAILED_PRECONDITION during another one; or no process can be profiled.
        """
        with self._lock:
            if self._since is not None:
                raise StatusError(
                    Code.FAILED_PRECONDITION,
                    "this proxy has been profiled by another call for "
                    f"{time.monotonic() - self._since:.0f} s: one profile at a time",
                )
            self._since = time.monotonic()
        with contextlib.ExitStack() as undo:
            undo.callback(self._free)
            processes = self._processes()
            profile = Profile(
                processes,
                most_s=self._limits.trace_s,
                most_bytes=self._limits.trace_bytes,
                memory=self._memory,
                on_end=self._free,
            )
            undo.pop_all()
            undo.callback(profile.drop)
            if not self._engine.computes_here:
                profile.notes += self._missing(processes)
            profile.start(levels)
            undo.pop_all()
        return profile

    def _free(self) -> None:
        with self._lock:
            self._since = None

    def _processes(self) -> list[RecordedProcess]:
        engine = self._engine
        devices = {d.id: Device(d.id, d.slice_index, d.host) for d in engine.devices}
        own = OwnProcess(list(devices.values()) if engine.computes_here else [])
        on: dict[object, list[Device]] = {}
        links = engine.executor_of
        for i, link in sorted(links.items()):
            on.setdefault(link, []).append(devices[i])
        executors: list[RecordedProcess] = [
            ExecutorProcess(links[found[0].id], found) for found in on.values()
        ]
        return [own, *executors]

    def _missing(self, processes: list[RecordedProcess]) -> list[str]:
        found = {device.slice_index for process in processes for device in process.devices}
        return [
            f"the profile has no planes of slice {index}: it has no executors at present"
            for index in range(len(self._engine.slices.instance_types))
            if index not in found
        ]
