"""Profiles this executor for its proxy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent import futures
from typing import TYPE_CHECKING

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.array_bytes import chunks
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.job import Job

if TYPE_CHECKING:
    from shared_pathways_service.servers.xla.profiler import Recording

__all__ = ["OwnProfile"]

_Action = pb.ProfileExecutor.Action


class OwnProfile:
    """The profile of this process, while there is one.

    Its one thread begins and ends profiles, in the order of the commands: a `DROP` that overtook
    its `START` would leave a profile that has no end.
    """

    def __init__(self) -> None:
        self._threads = futures.ThreadPoolExecutor(1, "profile")
        self._is_used = False
        # Only on that thread:
        self._number = 0
        self._recording: Recording | None = None

    def threads_for(self, body: pb.ProfileExecutor) -> futures.ThreadPoolExecutor | None:
        """Returns where a command is carried out; None: anywhere, in any order."""
        if body.action == _Action.CLOCK:
            return None
        self._is_used = True
        return self._threads

    def carry_out(self, job: Job, report: pb.ExecutorReport) -> Iterator[memoryview] | None:
        """Carries out a `ProfileExecutor`; returns the profile's bytes, if it is to stop.

        Raises:
          StatusError: There is a profile already, or none to stop, or it is too large.
        """
        body: pb.ProfileExecutor = job.body
        raw = b""
        if body.action == _Action.START:
            self._start(body)
        elif body.action == _Action.STOP:
            raw = self._stop(body)
        elif body.action == _Action.DROP and body.profile == self._number:
            self._drop()
        # Last: it is read for its round trip.
        report.clock_ns = time.time_ns()
        return chunks([memoryview(raw)]) if raw else None

    def close(self) -> None:
        """Ends a profile that has not ended, after the commands before; does not wait for it."""
        if self._is_used:
            with contextlib.suppress(RuntimeError):  # no thread: then there is no profile either
                self._threads.submit(self._drop)
        self._threads.shutdown(wait=False)

    def _start(self, body: pb.ProfileExecutor) -> None:
        from shared_pathways_service.servers.xla.profiler import Recording  # noqa: PLC0415 - XLA

        if self._recording is not None:
            raise StatusError(Code.ALREADY_EXISTS, "this executor is being profiled")
        self._recording = Recording(body.host_tracer_level, body.python_tracer_level)
        self._number = body.profile

    def _stop(self, body: pb.ProfileExecutor) -> bytes:
        if self._recording is None or body.profile != self._number:
            raise StatusError(Code.FAILED_PRECONDITION, "this executor is not being profiled")
        recording, self._recording = self._recording, None
        return recording.stop(body.most_bytes)

    def _drop(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            # Whatever it is: the profile is not wanted.
            with contextlib.suppress(Exception):
                recording.drop()
