"""The embedded service of the tests of connect(), and outside views of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from harness.deadlines import deadline, wait_until
from harness.processes import ServerProcess, run_async
from harness.programs import noting_logs, status
from shared_pathways_service.agent.journal import Entry, Journal
from shared_pathways_service.homes.embedded.discovery import find
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.settings import Settings

DEADLINE_S = deadline(180.0)
KIND = "tpuv6e:2x2"


@contextlib.contextmanager
def embedded(
    slices: int = 2, spares: int = 0, *flags: str, env: Mapping[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Runs a service with slices of one type for the length of the block, all of them ready."""
    arguments = [f"--slices={KIND}={slices}", f"--spares={spares}", *flags]
    module = "shared_pathways_service.servers.supervisor"
    with ServerProcess(module, arguments, env=dict(env or {})) as process:
        assert process.ready is not None, "\n".join(process.lines)
        try:
            with noting_logs():
                status(wait_s=DEADLINE_S)
                yield process
        finally:
            process.stop()


def shut_down() -> None:
    """Ends the service, whoever started it."""

    async def end() -> bool:
        link = await find(Settings.load())
        if link is None:
            return True
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(link.close)
            try:
                await link.supervisor.Shutdown(pb.ShutdownRequest(), metadata=link.metadata)
            except grpc.aio.AioRpcError as error:
                # (gRPC gives up a connection after 20 s, which a busy machine may need.)
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
        return True

    wait_until("the service takes the request to end", lambda: run_async(end()))


def free_slices() -> int:
    return sum(item["tenant"] is None for item in status()["slices"])


def journal() -> list[Entry]:
    directory = Settings.load().state_dir / "journal"
    return Journal(directory).entries() if directory.exists() else []


def journal_files() -> list[Path]:
    directory = Settings.load().state_dir / "journal"
    return list(directory.iterdir()) if directory.exists() else []


def eventually(look: Callable[[], Any], what: str) -> Any:
    """Waits until something is true, and returns it."""
    return wait_until(what, look)


def nothing_left() -> bool:
    """Whether no proxy runs, no slice is held, and the journal is empty."""
    told = status()
    return (
        not any(process["role"] == "proxy" for process in told["processes"])
        and not told["tenants"]
        and not told["queue"]
        and not journal_files()
    )
