"""Profiles an executor."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Protocol, TypeVar

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import from_exception
from shared_pathways_service.servers.proxy.profiles.clocks import Sample
from shared_pathways_service.servers.proxy.profiles.planes import Device
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels

__all__ = ["ExecutorProcess", "Link"]

_T = TypeVar("_T")
_Action = pb.ProfileExecutor.Action
#: Numbers the profiles of this proxy.
_numbers = itertools.count(1)


class Link(Protocol):
    """The stream to an executor."""

    def ask(
        self, command: pb.ExecutorCommand, *, receives: list[memoryview] | None = None
    ) -> futures.Future[pb.ExecutorReport]:
        """Sends a command; the future gets its report, or a StatusError."""


class ExecutorProcess:
    """An executor, as a `RecordedProcess`."""

    def __init__(self, link: Link, devices: Sequence[Device]) -> None:
        first = devices[0]
        self.name = f"slice {first.slice_index} host {first.host}"
        self.file = f"sps-slice{first.slice_index}-host{first.host}"
        self.devices = devices
        self.samples: list[Sample] = []
        self._link = link
        self._number = next(_numbers)

    def start(self, levels: Levels) -> futures.Future[None]:
        """Begins its profile."""
        command = pb.ProfileExecutor(
            action=_Action.START,
            profile=self._number,
            host_tracer_level=levels.host_tracer,
            python_tracer_level=levels.python_tracer,
        )
        return self._ask(command, lambda: None)

    def read_clock(self) -> futures.Future[None]:
        """Adds a sample."""
        return self._ask(pb.ProfileExecutor(action=_Action.CLOCK), lambda: None)

    def stop(self, most_bytes: int) -> futures.Future[bytes]:
        """Ends its profile, and brings it."""
        data: list[memoryview] = []
        command = pb.ProfileExecutor(
            action=_Action.STOP, profile=self._number, most_bytes=most_bytes
        )
        return self._ask(command, lambda: b"".join(data), data)

    def drop(self) -> None:
        """Has it end its profile."""
        command = pb.ProfileExecutor(action=_Action.DROP, profile=self._number)
        self._ask(command, lambda: None)

    def _ask(
        self,
        command: pb.ProfileExecutor,
        result: Callable[[], _T],
        receives: list[memoryview] | None = None,
    ) -> futures.Future[_T]:
        made: futures.Future[_T] = futures.Future()
        sent_ns = time.time_ns()

        def settle(reported: futures.Future[pb.ExecutorReport]) -> None:
            received_ns = time.time_ns()
            error = reported.exception()
            if error is not None:
                made.set_exception(from_exception(error).copy())
                return
            self.samples.append(Sample(sent_ns, reported.result().clock_ns, received_ns))
            made.set_result(result())

        asked = self._link.ask(pb.ExecutorCommand(profile=command), receives=receives)
        asked.add_done_callback(settle)
        return made
