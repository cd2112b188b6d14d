"""Profiles this executor for its proxy."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.array_bytes import chunks
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.job import Job

if TYPE_CHECKING:
    from shared_pathways_service.servers.xla.profiler import Recording

__all__ = ["OwnProfile"]


class OwnProfile:
    """The profile of this process, while there is one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recording: Recording | None = None

    def carry_out(self, job: Job, report: pb.ExecutorReport) -> Iterator[memoryview] | None:
        """Carries out a `ProfileExecutor`; returns the profile's bytes, if it is to stop.

        Raises:
          StatusError: There is a profile already, or none to stop, or it is too large.
        """
        body: pb.ProfileExecutor = job.body
        action = pb.ProfileExecutor.Action
        with self._lock:
            if body.action == action.START:
                self._start(body)
            elif body.action == action.DROP:
                self._drop()
            raw = self._stop(body.most_bytes) if body.action == action.STOP else b""
        # Last: it is read for its round trip.
        report.clock_ns = time.time_ns()
        return chunks([memoryview(raw)]) if raw else None

    def close(self) -> None:
        """Ends a profile that has not ended."""
        with self._lock:
            self._drop()

    def _start(self, body: pb.ProfileExecutor) -> None:
        from shared_pathways_service.servers.xla.profiler import Recording  # noqa: PLC0415 - XLA

        if self._recording is not None:
            raise StatusError(Code.ALREADY_EXISTS, "this executor is being profiled")
        self._recording = Recording(body.host_tracer_level, body.python_tracer_level)

    def _stop(self, most_bytes: int) -> bytes:
        recording, self._recording = self._recording, None
        if recording is None:
            raise StatusError(Code.FAILED_PRECONDITION, "this executor is not being profiled")
        return recording.stop(most_bytes)

    def _drop(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            # Whatever it is: the profile is not wanted.
            with contextlib.suppress(Exception):
                recording.drop()
