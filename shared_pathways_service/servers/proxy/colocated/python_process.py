"""The process in which a session's functions run, one after the other."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.colocated.python_messages import (
    Buffer,
    receive_buffer,
    receive_head,
    send,
)

__all__ = ["PythonProcess"]

_CHILD = "shared_pathways_service.servers.proxy.colocated.child"
#: The most bytes of a string, which describes results.
_STRING = 16 << 20
#: For the end of a process that was killed, or has closed its socket.
_ENDS_S = 5.0


class PythonProcess:
    """Starts the process when it is first needed, and again if it has ended. Thread-safe.

    Args:
      devices: How many devices it has.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        # It also starts the process, which ends with the thread that started it.
        self._thread = futures.ThreadPoolExecutor(1, "colocated-python")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._loaded: set[int] = set()
        self._is_closed = False

    def put(
        self,
        number: int,
        name: str,
        pickled: bytes,
        arguments: tuple[Sequence[Buffer], Sequence[Sequence[int]]],
        results: tuple[Sequence[int | None], Sequence[Sequence[int]]],
    ) -> futures.Future[list[bytearray]]:
        """Calls a function after those that were put before.

        Args:
          number: The number of the function in this session.
          name: Its name.
          pickled: The function, as JAX's client pickled it.
          arguments: The pieces of all arguments, and for each argument the device of each piece.
          results: The bytes of each piece of the results, None for a string; and the devices.
        """
        buffers, places = arguments
        sizes, wanted = results
        head = {"call": number, "arguments": places, "results": wanted}

        def call() -> list[bytearray]:
            try:
                connection = self._start()
                if number not in self._loaded:
                    self._exchange(connection, {"load": number}, [pickled], [])
                    self._loaded.add(number)
                return self._exchange(connection, head, buffers, sizes)
            except StatusError as error:
                raise StatusError(error.code, f"{name}: {error.message}") from None
            except OSError as error:
                raise StatusError(Code.ABORTED, f"{name}: {self._end(error)}") from error

        return self._thread.submit(call)

    def drop(self, number: int) -> None:
        """Frees a function once those before it have been called."""

        def forget() -> None:
            if number in self._loaded and self._socket is not None:
                self._loaded.discard(number)
                with contextlib.suppress(OSError):  # the next call notices its end
                    send(self._socket, {"drop": number})

        with contextlib.suppress(RuntimeError):  # closed: the process has ended
            self._thread.submit(forget)

    def abandon(self, call: futures.Future[Any]) -> None:
        """Ends a call that is not waited for any more, and the process if it runs the call."""
        if not call.cancel() and not call.done():
            self._kill()

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._is_closed = True
        self._kill()
        self._thread.submit(self._end, None)
        self._thread.shutdown(wait=False)

    def _start(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        ours, theirs = socket.socketpair()
        with theirs:
            words = (theirs.fileno(), self._devices, os.getpid())
            with self._lock:
                if self._is_closed:
                    ours.close()
                    raise StatusError(Code.CANCELLED, "the session has ended")
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _CHILD, *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    # (Its own output would mix with the log's lines.)
                    stdout=2,
                    pass_fds=[theirs.fileno()],
                    env=_environment(os.environ),
                )
        glog("I", f"Process {self._process.pid} runs the colocated Python of a session")
        self._socket = ours
        return ours

    def _exchange(
        self,
        connection: socket.socket,
        head: Mapping[str, Any],
        buffers: Sequence[Buffer],
        expected: Sequence[int | None],
    ) -> list[bytearray]:
        """Sends a message and returns the buffers of the answer, which must have these sizes."""
        send(connection, head, buffers)
        answer = receive_head(connection)
        if answer is None:
            raise ConnectionError("its socket was closed")
        if "error" in answer:
            raise StatusError(Code.ABORTED, str(answer["error"]))
        sizes = answer.get("sizes")
        if not isinstance(sizes, list) or not _are_expected(sizes, expected):
            raise ConnectionError("it sent results of another size")
        return [receive_buffer(connection, size) for size in sizes]

    def _kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def _end(self, error: OSError | None) -> str:
        """Forgets the process, and returns how it ended."""
        with self._lock:
            process, self._process = self._process, None
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._loaded.clear()
        if process is None:
            return str(error)
        # (One that closed its socket is about to end, and its own code says more than SIGKILL.)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0 if error is None else _ENDS_S)
        process.kill()
        code = process.wait(_ENDS_S)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        ended = f"the process of its colocated Python (pid {process.pid}) has ended {how}"
        glog("I", f"A session: {ended}")
        return ended


def _are_expected(sizes: Sequence[Any], expected: Sequence[int | None]) -> bool:
    return len(sizes) == len(expected) and all(
        isinstance(size, int) and (0 <= size <= _STRING if wanted is None else size == wanted)
        for size, wanted in zip(sizes, expected, strict=True)
    )


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of the process: not those that name the proxy's own files."""
    return {
        name: value
        for name, value in ours.items()
        if not name.startswith(("SPS_", "JAX_", "IFRT_")) and name != "XLA_FLAGS"
    }
