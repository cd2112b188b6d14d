"""The testbed's control socket: one line of JSON per request and per answer."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.testing.testbed.errors import TestbedError

__all__ = ["CALL_S", "ControlServer", "call"]

#: Seconds for a command; restarting the API server is the slowest.
CALL_S = 150.0
_LIMIT = 1 << 24


class ControlServer:
    """Serves commands: functions or coroutines of keyword arguments."""

    def __init__(self, path: Path, commands: Mapping[str, Callable[..., Any]]) -> None:
        self._path = path
        self._commands = commands
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts to listen."""
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=_LIMIT)
        self._path.chmod(0o600)

    async def stop(self) -> None:
        """Stops, and cancels calls in progress."""
        if self._server is not None:
            self._server.close()
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    answer = await self._answer(json.loads(line))
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        finally:
            self._calls.discard(task)
            writer.close()

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        command = self._commands.get(asked["command"])
        if command is None:
            return {"error": f"the testbed has no command {asked['command']}"}
        try:
            result = command(**asked["arguments"])
            if inspect.isawaitable(result):
                result = await result
        except (SharedPathwaysError, OSError) as error:
            return {"error": str(error)}
        return {"result": result}


def call(path: Path, command: str, /, **arguments: Any) -> Any:
    """Sends a command to a testbed, and returns its answer.

    Raises:
      TestbedError: The command failed, or the testbed has ended.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CALL_S)
        try:
            connection.connect(str(path))
            asked = json.dumps({"command": command, "arguments": arguments})
            connection.sendall(asked.encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline()
        except OSError as error:
            raise TestbedError(f"the testbed does not answer {command}: {error}") from error
    if not line:
        raise TestbedError(f"the testbed ended during {command}")
    answer = json.loads(line)
    if "error" in answer:
        raise TestbedError(f"{command}: {answer['error']}")
    return answer["result"]
