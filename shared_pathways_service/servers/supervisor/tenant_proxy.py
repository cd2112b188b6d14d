"""The supervisor's state of one tenant's proxy."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from shared_pathways_service.events import rfc3339
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.servers.supervisor.child import Child
from shared_pathways_service.servers.supervisor.command_lines import ProxyRequest

__all__ = ["TenantProxy"]

_FINAL = (pb.Proxy.EXITED, pb.Proxy.DELETED)


class TenantProxy:
    """One proxy; `child` is None before it is started."""

    def __init__(self, request: ProxyRequest, log: Path) -> None:
        self.request = request
        self.log = log
        self.token = secrets.token_urlsafe(32)
        self.child: Child | None = None
        self.ended_at: float | None = None
        self.uid = secrets.token_hex(4)
        self._message = pb.Proxy(
            name=request.tenant.name,
            session=request.session,
            uid=self.uid,
            log_path=str(log),
            state=pb.Proxy.STARTING,
            created=rfc3339(time.time()),
            owner_pid=request.owner_pid,
            limits=pb.ProxyLimits(**dataclasses.asdict(request.limits)),
        )
        self._watchers: set[asyncio.Queue[pb.Proxy]] = set()
        self.end_requested = asyncio.Event()
        #: Why it was requested to end; empty: it was not.
        self.end_reason = ""

    @property
    def transfer_dir(self) -> str:
        """The directory in which its clients put large buffers; empty: none."""
        return self._message.transfer_dir

    @property
    def is_over(self) -> bool:
        """Whether its process has ended."""
        return self._message.state in _FINAL

    def end(self, reason: str) -> None:
        """Requests its end; only the first reason counts."""
        self.end_reason = self.end_reason or reason
        self.end_requested.set()

    def message(self) -> pb.Proxy:
        """Returns its state, without its token."""
        copy = pb.Proxy()
        copy.CopyFrom(self._message)
        return copy

    def change(self, **fields: object) -> None:
        """Sets fields, and notifies watchers."""
        self._message.MergeFrom(pb.Proxy(**fields))  # type: ignore[arg-type]
        for watcher in self._watchers:
            watcher.put_nowait(self.message())

    async def changes(self) -> AsyncGenerator[pb.Proxy, None]:
        """Yields its state, and every change until it has ended."""
        queue: asyncio.Queue[pb.Proxy] = asyncio.Queue()
        queue.put_nowait(self.message())
        self._watchers.add(queue)
        try:
            while True:
                message = await queue.get()
                yield message
                if message.state in _FINAL:
                    return
        finally:
            self._watchers.discard(queue)
