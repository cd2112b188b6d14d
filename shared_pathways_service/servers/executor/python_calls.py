"""Calls a proxy's functions of `jax.experimental.colocated_python` in processes of this host."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent import futures

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.colocated.python_messages import Buffer
from shared_pathways_service.servers.colocated.python_process import PythonProcess
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.held import Held
from shared_pathways_service.servers.executor.job import Job

__all__ = ["PythonCalls"]

Results = futures.Future[list[bytearray]]

#: Sessions that have ended whose numbers are remembered: their last functions come soon after.
_REMEMBERED = 1024


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PythonFunction:
    """A function, and the process in which it runs."""

    body: pb.MakePython
    process: PythonProcess

    def call(self, buffers: Sequence[Buffer]) -> Results:
        """Calls it after the calls of its process that began before."""
        body = self.body
        return self.process.put(
            body.program,
            body.name,
            body.pickled,
            device_ids=body.devices,
            buffers=buffers,
            sizes=[None if n < 0 else n for n in body.piece_bytes for _ in body.devices],
        )

    def drop(self) -> None:
        """Frees it in its process."""
        self.process.drop(self.body.program)


class PythonCalls:
    """The processes of a proxy's sessions on this host, and their calls. Thread-safe.

    Args:
      is_allowed: Whether there may be such processes.
    """

    def __init__(self, *, is_allowed: bool) -> None:
        self._is_allowed = is_allowed
        self._lock = threading.Lock()
        self._processes: dict[int, PythonProcess] = {}
        #: The numbers of sessions that have ended: their last functions may be made only then.
        self._closed: deque[int] = deque(maxlen=_REMEMBERED)
        #: Calls by the numbers of their commands; None: it has not begun.
        self._calls: dict[int, tuple[PythonProcess, Results] | None] = {}

    def make(self, job: Job, _report: pb.ExecutorReport) -> None:
        """Makes a function, which is unpickled when it is first called.

        Raises:
          StatusError: No functions may run here, or the session has ended.
        """
        body: pb.MakePython = job.body
        if not self._is_allowed:
            raise StatusError(
                Code.UNIMPLEMENTED, f"{body.name}: this executor has no --colocated_python"
            )
        with self._lock:
            if body.python in self._closed:
                raise StatusError(Code.CANCELLED, f"{body.name}: its session has ended")
            process = self._processes.get(body.python)
            if process is None:
                process = self._processes[body.python] = PythonProcess(body.device_count)
        job.makes[0].fill(PythonFunction(body, process))

    def drop(self, held: Held | None) -> None:
        """Frees a function, if this is one, in its process."""
        if held is not None and isinstance(held.value, PythonFunction):
            held.value.drop()

    def expect(self, number: int) -> None:
        """Notes a call that begins later, so that it can be abandoned before."""
        with self._lock:
            self._calls[number] = None

    def begin(self, job: Job, then: Callable[[Job], object]) -> None:
        """Begins an expected call; `then` is called with a job for `end` once it has returned.

        Raises:
          StatusError: It was abandoned, or has too many arrays; or its arguments have an error.
        """
        function: PythonFunction = job.uses[1].get()
        client = job.opened
        buffers = [piece for held in job.uses[2:] for piece in client.pieces(held.get())]
        with self._lock:
            if job.number not in self._calls:
                raise StatusError(Code.CANCELLED, f"{function.body.name} was not called")
            made = function.call(buffers)
            self._calls[job.number] = (function.process, made)
        ended = dataclasses.replace(job, kind="end_python", body=made)
        made.add_done_callback(lambda _made: then(ended))

    def end(self, job: Job, report: pb.ExecutorReport) -> None:
        """Makes the arrays that a call has returned.

        Raises:
          StatusError: It has failed.
        """
        self.forget(job.number)
        function: PythonFunction = job.uses[1].get()
        body = function.body
        try:
            pieces = iter(job.body.result())
        except futures.CancelledError:
            raise StatusError(Code.CANCELLED, f"{body.name} was not called") from None
        made = iter(zip(job.makes, body.results, strict=True))
        for nbytes in body.piece_bytes:
            own = [next(pieces) for _ in body.devices]
            if nbytes < 0:
                report.pieces.extend(map(bytes, own))
            else:
                held, spec = next(made)
                held.fill(job.opened.put(spec, [memoryview(piece) for piece in own]))

    def forget(self, number: int) -> None:
        """Forgets a call that has ended, or that failed and does not begin."""
        with self._lock:
            self._calls.pop(number, None)

    def abandon(self, number: int) -> None:
        """Ends a call, and the process if it runs the call; nothing if it has ended."""
        with self._lock:
            call = self._calls.pop(number, None)
        if call is not None:
            process, made = call
            process.abandon(made)

    def close(self, numbers: Collection[int]) -> None:
        """Kills the processes of sessions that have ended."""
        with self._lock:
            self._closed.extend(numbers)
            ended = [self._processes.pop(n) for n in numbers if n in self._processes]
        for process in ended:
            process.close()

    def close_all(self) -> None:
        """Kills all processes."""
        self.close(list(self._processes))
