"""The child process in which a session's functions run, and the proxy's end of its socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jaxlib.version

from shared_pathways_service.api.faulty_jax import SOUND_XLA_FLAGS, fault_of
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.processes import identity_of_child
from shared_pathways_service.servers.colocated.python_messages import (
    Buffer,
    encode,
    receive_buffer,
    receive_head,
    send,
)
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.serving.process import ProcessWatch

__all__ = ["ChildProcess"]

_CHILD = "shared_pathways_service.servers.colocated.child"
#: The most bytes of a string, which describes results.
_STRING = 16 << 20


class ChildProcess:
    """A running process. `kill` may be called on any thread, the rest on the one that started it.

    Args:
      devices: How many devices it has.

    Raises:
      OSError: It cannot be started.
    """

    def __init__(self, devices: int) -> None:
        self._loaded: set[int] = set()
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._is_reaped = False
        with contextlib.ExitStack() as undo:
            self._socket, theirs = socket.socketpair()
            undo.callback(self._socket.close)
            with theirs:
                words = (theirs.fileno(), devices, os.getpid())
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _CHILD, *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    # (Its own output would mix with the log's lines.)
                    stdout=2,
                    pass_fds=[theirs.fileno()],
                    env=_environment(os.environ),
                    # The processes that functions start end with it.
                    start_new_session=True,
                )
            undo.callback(self._kill_group)
            self._watch = ProcessWatch(identity_of_child(self._process.pid), self._note_end)
            undo.pop_all()
        glog("I", f"Process {self._process.pid} runs the colocated Python of a session")

    def load(self, number: int, pickled: bytes) -> None:
        """Gives it a function, unless it has it already."""
        if number not in self._loaded:
            self.call(encode({"load": number}, [len(pickled)]), [pickled], [])
            self._loaded.add(number)

    def call(
        self, beginning: bytes, buffers: Sequence[Buffer], expected: Sequence[int | None]
    ) -> list[bytearray]:
        """Sends a message and returns the buffers of the answer, which must have these sizes.

        Raises:
          StatusError: The function has failed.
          Exception: Any other one: bytes may be left in the socket, and the process must end.
        """
        send(self._socket, beginning, buffers)
        answer = receive_head(self._socket)
        if answer is None:
            raise ConnectionError("its socket was closed")
        if "error" in answer:
            text = str(answer["error"]).encode(errors="backslashreplace").decode()
            raise StatusError(Code.ABORTED, text)
        sizes = answer.get("sizes")
        if not isinstance(sizes, list) or not _are_expected(sizes, expected):
            raise ConnectionError("it sent results of another size")
        return [receive_buffer(self._socket, size) for size in sizes]

    def drop(self, number: int) -> None:
        """Frees a function."""
        if number in self._loaded:
            self._loaded.discard(number)
            with contextlib.suppress(OSError):  # the next call notices its end
                send(self._socket, encode({"drop": number}))

    def kill(self) -> None:
        """Kills it and the processes of its functions, and so ends its current call."""
        with self._lock:
            if not self._is_reaped:
                self._kill_group()
                self._shut_down()

    def end(self, error: Exception | None) -> str:
        """Ends it and the processes of its functions; returns how it has ended.

        Args:
          error: What went wrong with its socket; None: kill it at once.
        """
        with self._lock:
            self._socket.close()
        # (It ends by itself now, and its own code says more than SIGKILL.)
        if error is not None:
            self._has_ended.wait(timeouts.COLOCATED_END.s)
        with self._lock:
            self._kill_group()
            self._is_reaped = True
        try:
            code = self._process.wait(timeouts.COLOCATED_END.s)
            how = f"has ended by signal {-code}" if code < 0 else f"has ended with code {code}"
        except subprocess.TimeoutExpired:
            how = f"still runs {timeouts.COLOCATED_END.s:g} s after SIGKILL"
        self._watch.close()
        ended = f"the process of its colocated Python (pid {self._process.pid}) {how}"
        glog("I", f"A session: {ended}")
        return ended

    def _note_end(self) -> None:
        """Ends the current call: a process that a function forked may have the socket as well."""
        self._has_ended.set()
        with self._lock:
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _kill_group(self) -> None:
        # While its leader is not reaped, no other group can have this number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _are_expected(sizes: Sequence[Any], expected: Sequence[int | None]) -> bool:
    return len(sizes) == len(expected) and all(
        isinstance(size, int) and (0 <= size <= _STRING if wanted is None else size == wanted)
        for size, wanted in zip(sizes, expected, strict=True)
    )


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of the process: not those that name the proxy's own files."""
    kept = {
        name: value
        for name, value in ours.items()
        if not name.startswith(("SPS_", "JAX_", "IFRT_")) and name != "XLA_FLAGS"
    }
    if fault_of(jaxlib.version.__version__):
        kept["XLA_FLAGS"] = SOUND_XLA_FLAGS
    return kept
