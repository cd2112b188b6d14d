"""Runs one container: a process in its own namespaces, with a log like a container runtime's."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import logging
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from shared_pathways_service.testing.testbed.daemons import TIED_TO_PARENT
from shared_pathways_service.testing.testbed.node_agent.output_pipe import OutputPipe
from shared_pathways_service.testing.testbed.patches import ENDED_SUFFIX

__all__ = ["Container", "Isolation", "LogFile", "find_isolation", "now"]

_log = logging.getLogger(__name__)

_NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_ENTERING = ("--pid", "--mount")
#: The same in a user namespace, for users other than root.
_AS_ROOT = ("--user", "--map-root-user")
_ENTERING_AS_ROOT = ("--user", "--preserve-credentials")
#: The message of `unshare` (at least util-linux 2.38) before it exits with 1 because its child was
#: killed by SIGKILL: it tries to end by the same signal, but SIGKILL cannot be unblocked.
_CHILD_KILLED = b"unshare: sigprocmask unblock failed"
#: Seconds for a log to end after its process, in case a descendant holds it open.
_LOG_END_S = 2.0
#: Seconds for the namespaces to be created, and between two polls.
_BEGIN_S = 30.0
_LOOK_S = 0.002
_LINE_LIMIT = 1 << 16
#: The limits of a log's end in a status, as in the kubelet.
_TAIL_LINES = 80
_TAIL_BYTES = 2048


@dataclasses.dataclass(frozen=True)
class Isolation:
    """The isolation of containers; see `find_isolation`.

    Attributes:
      prefix: The prefix of a container's command; empty: it is an ordinary process.
      entering: Flags for `nsenter` to enter a container; empty: it cannot.
    """

    prefix: tuple[str, ...]
    entering: tuple[str, ...] = ()


def find_isolation() -> Isolation:
    """Returns the best isolation that this machine permits; warns if there is none."""
    for prefix, entering in (
        (_NAMESPACES, _ENTERING),
        ((_NAMESPACES[0], *_AS_ROOT, *_NAMESPACES[1:]), (*_ENTERING_AS_ROOT, *_ENTERING)),
    ):
        if shutil.which(prefix[0]) is None:
            break
        tried = subprocess.run([*prefix, "true"], capture_output=True, check=False, timeout=60)
        if tried.returncode == 0:
            return Isolation(prefix, entering if shutil.which("nsenter") else ())
    _log.warning(
        "NO PID NAMESPACES HERE: containers run as ordinary processes, each a process group. What "
        "they start may outlive them, and signals that process 1 passes over kill them."
    )
    return Isolation(())


@dataclasses.dataclass(frozen=True)
class LogFile:
    """The log of a container, over all its runs; `path` is that of the current or last run."""

    path: Path

    @property
    def previous(self) -> Path:
        """The log of the previous run."""
        return self.path.with_suffix(f".previous{self.path.suffix}")

    def begin(self) -> None:
        """Rotates the logs for a new run."""
        for suffix in ("", ENDED_SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).replace(
                    self.previous.with_name(self.previous.name + suffix)
                )

    def end(self) -> None:
        """Marks the log as complete for its followers."""
        self.path.with_name(self.path.name + ENDED_SUFFIX).touch()


class Container:
    """A running container, created by `start`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        isolation: Isolation,
        log: LogFile,
        output: Mapping[str, OutputPipe],
    ) -> None:
        self.started_at = now()
        self._log = log
        self._process = process
        self._isolation = isolation
        self._output = output
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._pump: asyncio.Task[None] | None = None
        self._is_killed = False
        # Whether its process 1 may be yet to appear, and then is to be killed.
        self._is_beginning = True
        self._is_doomed = False

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        directory: Path,
        log: LogFile,
        isolation: Isolation,
    ) -> Container:
        """Starts a container, after rotating its log.

        Raises:
          OSError: There is no such program.
        """
        if shutil.which(argv[0], path=env.get("PATH")) is None:
            raise FileNotFoundError(f"{argv[0]}: executable file not found in $PATH")
        with contextlib.ExitStack() as pipes:
            output = {name: OutputPipe(_LINE_LIMIT) for name in ("stdout", "stderr")}
            for pipe in output.values():
                pipes.callback(pipe.close)
                await pipe.open()
            process = await asyncio.create_subprocess_exec(
                *TIED_TO_PARENT,
                *isolation.prefix,
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output["stdout"].writing_end,
                stderr=output["stderr"].writing_end,
                env=env,
                cwd=directory,
                start_new_session=True,
            )
            pipes.pop_all()
        for pipe in output.values():
            pipe.close_writing_end()
        container = cls(process, isolation, log, output)
        log.begin()
        container._pump = asyncio.create_task(container._write_log())
        return container

    @property
    def pid(self) -> int | None:
        """The id of the container's process 1 on this machine; None if there is none."""
        if self._process.returncode is not None:
            return None
        outer = self._process.pid
        if not self._isolation.prefix:
            return outer
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{outer}/task/{outer}/children").read_text(encoding="ascii")
            if children.strip():
                return int(children.split()[0])
        return None

    @property
    def tail(self) -> str:
        """The end of its log, as in a status of the kubelet."""
        return "\n".join(self._tail)[-_TAIL_BYTES:]

    async def wait(self) -> int:
        """Waits for its end and its complete log; returns the exit code, 128 + N for a signal."""
        code = await self._process.wait()
        if not self._isolation.prefix:
            self._signal_group(signal.SIGKILL)
        assert self._pump is not None
        try:
            async with asyncio.timeout(_LOG_END_S):
                await asyncio.shield(self._pump)
        except TimeoutError:
            self._pump.cancel()
        for pipe in self._output.values():
            pipe.close()
        self._log.end()
        if self._is_killed:
            return 128 + signal.SIGKILL
        return 128 - code if code < 0 else code

    async def wait_for_process_1(self) -> None:
        """Waits until it can be signalled, or has ended already."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEGIN_S):
                while self.pid is None and self._process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)  # (a fork sends no notification)
        self._is_beginning = False
        if self._is_doomed:
            self.kill()

    def terminate(self) -> None:
        """Sends SIGTERM to its process 1."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills it, with all its descendants; at the latest once its process 1 exists."""
        if self._process.returncode is not None:
            return
        if not self._isolation.prefix:
            self._signal_group(signal.SIGKILL)
            return
        # Not the program that creates the namespaces: the exit code would be that program's, and
        # a process 1 that was just forked, and is not tied to that program yet, would live on.
        pid = self.pid
        if pid is None and self._is_beginning:
            self._is_doomed = True
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid if pid is None else pid, signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _write_log(self) -> None:
        with self._log.path.open("wb", buffering=0) as file:
            copies = (self._copy(pipe.reader, name, file) for name, pipe in self._output.items())
            await asyncio.gather(*copies)

    async def _copy(self, stream: asyncio.StreamReader, name: str, file: BinaryIO) -> None:
        while data := await _read_line(stream):
            if self._isolation.prefix and data.startswith(_CHILD_KILLED):
                self._is_killed = True
                continue
            text = data.rstrip(b"\n")
            kind = "F" if data.endswith(b"\n") else "P"
            file.write(f"{_nanoseconds()} {name} {kind} ".encode() + text + b"\n")
            self._tail.append(text.decode(errors="replace"))


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(max(1, min(error.consumed, _LINE_LIMIT)))


def now() -> str:
    """Returns the current time in the format of a status."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _nanoseconds() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
