"""Runs a program of the control plane with a log, and restarts it when it ends by itself.

It ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from shared_pathways_service.testing.testbed.errors import TestbedError

__all__ = ["TIED_TO_PARENT", "Daemon"]

#: Before a command: the kernel kills it when the thread that started it ends.
TIED_TO_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")

_STOP_S = 5.0
_RESTART_PAUSE_S = 0.5
_TAIL_BYTES = 2000
#: The programs are written in Go, and most of what they compute at their start is the collection of
#: garbage: it waits until the heap has grown fivefold, or to this limit.
_GO = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}


class Daemon:
    """One program, started by `start`.

    Args:
      command: The program and its arguments.
      log: The file to which both its outputs are appended.
      report: Called when it ended by itself.
    """

    def __init__(self, command: Sequence[str], *, log: Path, report: Callable[[str], None]) -> None:
        self.name = Path(command[0]).name
        self.log = log
        self._command = command
        self._report = report
        # Not the environment of the testbed's creator, which is a test's or a user's.
        self._env = {"PATH": os.environ.get("PATH", ""), "HOME": str(log.parent), **_GO}
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None if it is not running."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        """Starts it, and restarts it whenever it ends."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep-{self.name}")

    async def stop(self) -> None:
        """Stops it: SIGTERM, then SIGKILL after a timeout."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kills it, as a crash of the machine would."""
        await self._end(signal.SIGKILL)

    def check(self) -> None:
        """Raises `TestbedError` if it has ended."""
        if self.pid is None:
            raise TestbedError(f"{self.name} ended", hint=f"its log ends: {self.tail()}")

    def tail(self) -> str:
        """Returns the end of its log."""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    async def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *TIED_TO_PARENT,
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self.log.parent,
                # A terminal's Ctrl-C is for the testbed, which stops its programs in order.
                start_new_session=True,
                umask=0o077,
            )

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            self._report(f"{self.name} ended with {code}, and is started again; see {self.log}")
            await asyncio.sleep(_RESTART_PAUSE_S)
            await self._spawn()

    async def _end(self, number: signal.Signals) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
