"""Starts, watches and ends one child process, with a log and a pipe for its report of readiness."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shared_pathways_service.constants import CPU
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.embedded.log_directory import open_log_if_possible
from shared_pathways_service.runtime.embedded.server_environment import server_environment
from shared_pathways_service.runtime.processes import Identity, identity_of_child

__all__ = ["Child", "ChildEnded", "Serving"]

_READY_LIMIT = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving:
    """The addresses of a child, as it reported them; port 0 and an empty socket: none."""

    port: int
    socket: str


class ChildEnded(Exception):  # noqa: N818 - it is no failure of ours
    """The child ended before it served."""


class Child:
    """A child process, running or ended; made by `start`.

    Attributes:
      role: ``rm``, ``worker``, ``proxy`` or ``standby``.
      name: Unique among the service's processes.
      ready_fd: The number of the ``--ready_fd`` in the child.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        identity: Identity,
        *,
        role: str,
        name: str,
        log: Path,
        ready_fd: int,
        ready_pipe: int,
    ) -> None:
        self.role = role
        self.name = name
        self.identity = identity
        self.log = log
        #: The number of the ``--ready_fd`` in the child.
        self.ready_fd = ready_fd
        self._process = process
        self._began = time.monotonic()
        loop = asyncio.get_running_loop()
        self._serving: asyncio.Future[Serving] = loop.create_future()
        # The result of a child may not be awaited.
        self._serving.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._reader = loop.create_task(self._read_ready(ready_pipe))

    @classmethod
    async def start(
        cls,
        command: Callable[[int], Sequence[str]],
        *,
        role: str,
        name: str,
        log: Path,
        with_stdin: bool = False,
        platform: str = CPU,
    ) -> Child:
        """Starts a child; call it on a thread that lives as long as the child should.

        `command` returns the command line for a number of the ready descriptor. `platform` is what
        the child's own children compute on.
        """
        with contextlib.ExitStack() as stack:
            ours, theirs = os.pipe()
            undo = stack.enter_context(contextlib.ExitStack())
            undo.callback(os.close, ours)
            stack.callback(os.close, theirs)
            output = stack.enter_context(open_log_if_possible(log))
            process = await asyncio.create_subprocess_exec(
                *command(theirs),
                stdin=asyncio.subprocess.PIPE if with_stdin else asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs,),
                env=server_environment(os.environ, platform),
                cwd="/",
                # A terminal's Ctrl-C goes to the supervisor, which ends its children in order.
                start_new_session=True,
                umask=0o077,
            )
            undo.callback(process.kill)
            identity = identity_of_child(process.pid)
            undo.pop_all()
        return cls(
            process, identity, role=role, name=name, log=log, ready_fd=theirs, ready_pipe=ours
        )

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs; negative for a signal."""
        return self._process.returncode

    @property
    def lived_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    async def serving(self) -> Serving:
        """Returns its addresses once it serves; raises ChildEnded if it does not."""
        return await asyncio.shield(self._serving)

    async def wait(self) -> int:
        """Returns the exit code once it has ended."""
        code = await self._process.wait()
        await self._reader
        return code

    async def write_line(self, line: str) -> None:
        """Writes a line to its standard input, and closes that."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()
        self._process.stdin.close()

    async def stop(self, grace: Timeout) -> int:
        """Ends it: SIGTERM, and SIGKILL after the grace period; returns its exit code."""
        self._signal(signal.SIGTERM)
        try:
            async with within(grace):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """Sends SIGKILL, if it still runs."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Stops it with SIGSTOP until `resume`; `stop` before that takes the whole grace period."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues it."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # Not reaped as long as there is no return code, so the id is still its own.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read_ready(self, pipe: int) -> None:
        reader = asyncio.StreamReader(limit=_READY_LIMIT)
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb", 0))
        try:
            said = json.loads(await reader.readline())
            serving = Serving(port=int(said["port"]), socket=str(said["socket"]))
        except (ValueError, TypeError, KeyError):
            self._serving.set_exception(ChildEnded(f"{self.name} ended before it served"))
        else:
            self._serving.set_result(serving)
        finally:
            transport.close()
