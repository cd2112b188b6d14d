"""Profiles this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TypeVar

from shared_pathways_service.servers.devices.status_errors import from_exception
from shared_pathways_service.servers.proxy.profiles.clocks import Sample
from shared_pathways_service.servers.proxy.profiles.planes import Device
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels
from shared_pathways_service.servers.xla.profiler import Recording

__all__ = ["OwnProcess"]

_T = TypeVar("_T")


class OwnProcess:
    """This proxy, as a `RecordedProcess`: everything is done when a call returns."""

    name = "the proxy"
    file = "sps-proxy"
    samples: Sequence[Sample] = ()

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = devices
        self._recording: Recording | None = None

    def start(self, levels: Levels) -> futures.Future[None]:
        """Begins its profile."""

        def start() -> None:
            self._recording = Recording(levels.host_tracer, levels.python_tracer)

        return _done(start)

    def read_clock(self) -> futures.Future[None]:
        """Adds no sample."""
        return _done(lambda: None)

    def stop(self, most_bytes: int) -> futures.Future[bytes]:
        """Ends its profile."""
        recording, self._recording = self._recording, None
        return _done(lambda: b"" if recording is None else recording.stop(most_bytes))

    def drop(self) -> None:
        """Ends its profile, if there is one."""
        recording, self._recording = self._recording, None
        if recording is not None:
            # Whatever it is: the profile is not wanted.
            with contextlib.suppress(Exception):
                recording.drop()


def _done(act: Callable[[], _T]) -> futures.Future[_T]:
    future: futures.Future[_T] = futures.Future()
    try:
        future.set_result(act())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where it is awaited
        future.set_exception(from_exception(error).copy())
    return future
