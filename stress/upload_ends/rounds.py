"""Rounds: a program uploads, its tunnel ends, and its process should raise errors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from harness.deadlines import deadline
from harness.own_service import own_directories
from harness.processes import REPOSITORY, ServerProcess
from shared_pathways_service.tunnel.link.near_uploads import UploadEnds
from stress.upload_ends.tunnels import an_ending

__all__ = ["Load", "Outcome", "Rounds", "rounds_of", "unguarded"]

#: Between the uploads' begin and the tunnel's end.
_UPLOADING_S = 0.02
_SLICES = 3
#: Seconds until a client has hung. (It is the slowest process of a busy machine.)
_HUNG_S = deadline(240.0)


@dataclasses.dataclass(frozen=True)
class Load:
    """What a program uploads.

    Attributes:
      uploads: Arrays at once.
      array_bytes: Of each.
      window_s: How long the race of JAX's client is held open.
    """

    uploads: int = 12
    array_bytes: int = 4096
    window_s: float = 0.02


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a round ended.

    Attributes:
      ending: The tunnel's, a name of `ENDINGS`.
      end: "errors", as it should be; the signal that ended the process; or "hung".
      raced: Whether two threads of JAX were in the window, as in a crash.
      error_s: Seconds from the uploads' begin to the last error.
    """

    ending: str
    end: str
    raced: bool
    error_s: float


class _Client:
    """A process of `stress.upload_ends.client`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @classmethod
    async def start(cls, load: Load, log: Path) -> _Client:
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "stress.upload_ends.client"),
                *(str(each) for each in (load.uploads, load.array_bytes, load.window_s)),
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
                    "JAX_PLATFORMS": "cpu",
                },
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        return cls(process, log)

    def order(self, word: str) -> None:
        """Sends an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(word).encode() + b"\n")

    async def answer(self) -> dict[str, Any] | None:
        """Returns what it says; None if it was ended by a signal.

        Raises:
          AssertionError: It has ended otherwise.
        """
        assert self.process.stdout is not None
        if line := await self.process.stdout.readline():
            said: dict[str, Any] = json.loads(line)
            return said
        if await self.process.wait() >= 0:
            raise AssertionError(f"the client failed:\n{self._log.read_text()}")
        return None

    async def kill(self) -> None:
        """Ends it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Rounds:
    """Plays rounds with a proxy.

    Args:
      proxy: The proxy's socket.
      scratch: A private directory.
      load: What programs upload.
    """

    def __init__(self, proxy: Path, scratch: Path, load: Load) -> None:
        self._proxy = proxy
        self._scratch = scratch
        self._load = load
        self._client: _Client | None = None

    async def play(self, ending: str) -> Outcome:
        """Plays a round.

        Args:
          ending: A name of `ENDINGS`.

        Raises:
          AssertionError: The program raised something else.
        """
        if self._client is None:
            self._client = await _Client.start(self._load, self._scratch / "client.log")
        client = self._client
        began = time.monotonic()
        try:
            async with asyncio.timeout(_HUNG_S):
                last = await self._end_uploads(client, ending)
        except TimeoutError:
            await self.close()
            return Outcome(ending, "hung", raced=False, error_s=time.monotonic() - began)
        if last is None:
            self._client = None
            end = signal.Signals(-(await client.process.wait())).name
            return Outcome(ending, end, raced=True, error_s=0.0)
        return Outcome(ending, "errors", raced=last["entered"] > 1, error_s=last["error_s"])

    async def close(self) -> None:
        """Ends the program."""
        client, self._client = self._client, None
        if client is not None:
            await client.kill()

    async def _end_uploads(self, client: _Client, name: str) -> dict[str, Any] | None:
        async with an_ending(name, self._proxy, self._scratch) as (ending, address):
            client.order(address)
            said = await client.answer()
            assert said == {"word": "connected"}, said
            ending.hold()
            if ending.begins_before:
                await ending.end()
            client.order("upload")
            said = await client.answer()
            if said is not None and said["word"] == "uploading":
                if not ending.begins_before:
                    await asyncio.sleep(_UPLOADING_S)
                    await ending.end()
                said = await client.answer()
            return said


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Lets tunnels close all their connections at once, as they did before (the control)."""
    with mock.patch.object(UploadEnds, "take_over", lambda _self, _watch, local: local.close()):
        yield


@contextlib.asynccontextmanager
async def rounds_of(load: Load, programs: int = 1) -> AsyncIterator[list[Rounds]]:
    """Starts a proxy; yields what plays rounds with it, one for each program at a time."""
    async with contextlib.AsyncExitStack() as stack:
        scratch = stack.enter_context(own_directories())
        proxy = scratch / "p"
        slices = ",".join(["tpuv6e:2x2"] * _SLICES * programs)
        flags = (f"--server_socket={proxy}", f"--virtual_slices={slices}")
        stack.enter_context(
            ServerProcess(
                "shared_pathways_service.servers.proxy", flags, env={"JAX_PLATFORMS": "cpu"}
            )
        )
        every = []
        for number in range(programs):
            own = scratch / str(number)
            own.mkdir(mode=0o700)
            every.append(Rounds(proxy, own, load))
            stack.push_async_callback(every[-1].close)
        yield every
