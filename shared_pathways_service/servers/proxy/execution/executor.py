"""One thread and one queue for the programs of one placement of one slice."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import StatusError, from_exception
from shared_pathways_service.servers.proxy.execution.in_flight import InFlight
from shared_pathways_service.servers.serving.last_requests_file import Place

__all__ = ["Executor", "Meeting", "Task"]


class Task(Protocol):
    """Work that an executor runs."""

    name: str

    def arrive(self, executor: Executor) -> None:
        """Runs on the calling thread, which belongs to `executor`."""

    def fail(self, error: StatusError) -> None:
        """Settles with an error, unless settled already."""


class Executor:
    """Runs operations in the order of their arrival.

    XLA cannot be cancelled: a thread may be stuck in a program for ever. It can be left behind
    (`leave_behind`), and the queue continues with another.

    An operation that cannot take long may run elsewhere, as if it had passed the queue, while the
    queue is empty (`reserve`).

    Attributes:
      in_flight: Operations that were started and have not settled.
    """

    def __init__(self, name: str, place: Place) -> None:
        self.in_flight = InFlight(place)
        self._name = name
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Operations that are queued or run, with those that were left behind.
        self._open = 0
        # Held while an operation runs elsewhere.
        self._elsewhere = threading.Lock()
        self._threads = 0
        self._running: Task | None = None
        self._thread: threading.Thread | None = None
        self._start()

    def put(self, operation: Task) -> None:
        """Queues an operation whose inputs are ready or made by this queue before it."""
        with self._lock:
            self._open += 1
        self._queue.put(operation)

    def reserve(self) -> bool:
        """Holds back what is queued from now on until `release`, if nothing is queued now."""
        with self._lock:
            if self._open:
                return False
            self._open = 1
            self._elsewhere.acquire()
        return True

    def release(self) -> None:
        """Lets the queue continue."""
        self.in_flight.end()
        with self._lock:
            self._open -= 1
            self._elsewhere.release()

    def leave_behind(self, operation: Task) -> None:
        """Leaves the current thread to the operation that it is stuck in, if it still is.

        If the system has no other thread, the queue continues with this one later.
        """
        with self._lock:
            if self._running is operation:
                self._running = None
                try:
                    self._start()
                except RuntimeError as error:
                    self._running = operation
                    glog("E", f"The operations after {operation.name} wait for it: {error}")

    def close(self) -> None:
        """Ends the thread after its current operation."""
        self._queue.put(None)

    def _start(self) -> None:
        self._threads += 1
        name = f"{self._name}-{self._threads}"
        # Assigned before it runs: the loop ends when it finds another thread in its place.
        present = self._thread
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = present
            raise

    def _loop(self) -> None:
        me = threading.current_thread()
        while True:
            operation = self._queue.get()
            if operation is None:
                return
            with self._elsewhere:
                pass
            # One thread takes from the queue at a time, so this one has not been left behind yet.
            self._running = operation
            try:
                operation.arrive(self)
            except Exception as error:  # noqa: BLE001 - the slice goes on without this one
                glog("E", f"{operation.name} failed: {type(error).__name__}: {error}")
                operation.fail(from_exception(error))
            # Keep no reference to the last operation while waiting for the next.
            del operation
            with self._lock:
                self._open -= 1
                if self._thread is not me:
                    return
                self._running = None
                self.in_flight.end()


class Meeting:
    """Has the last of `size` executors run the work, and the others wait for its end."""

    __slots__ = ("_ended", "_lock", "_missing")

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._missing = size
        self._ended = threading.Event()

    def arrive(self) -> bool:
        """Returns True to the last executor; to the others False, once the work has ended."""
        with self._lock:
            self._missing -= 1
            is_last = not self._missing
        if not is_last:
            # Set when the operation settles: by its end, or at once by the loss of any slice.
            self._ended.wait()
        return is_last

    def end(self) -> None:
        """Lets the executors that wait go on."""
        self._ended.set()
