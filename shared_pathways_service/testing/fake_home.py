"""A scripted home without a service, which records its calls.

For tests of the layers above a home. The state is written into a directory, so that a test can
read it while the home is in an agent's process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import ProxyFailed, SharedPathwaysError, from_json
from shared_pathways_service.events import Event, Scalar
from shared_pathways_service.events.session import (
    HomeLost,
    ProxyDeleted,
    ProxyServing,
    ServiceWaiting,
    ServiceWarning,
)
from shared_pathways_service.events.tenants import SlicePlaced, TenantRunning
from shared_pathways_service.homes.base import HomeCounters, ProxyHandle, ServiceInfo, Tell
from shared_pathways_service.runtime.processes import Identity

__all__ = ["FakeHome", "placed_news"]

_LOOK_S = 0.01


def placed_news(virtual_slices: Sequence[str]) -> list[Event]:
    """Returns the events of a proxy that serves and whose slices are all placed."""
    placed = [
        SlicePlaced(virtual_index=i, slice_id=f"slice-{i}", generation=i + 1, instance_type=name)
        for i, name in enumerate(virtual_slices)
    ]
    count = len(virtual_slices)
    return [ProxyServing(), *placed, TenantRunning(placed=count, wanted=count)]


class FakeHome:
    """Implements `homes.base.Home`, with files as proxies.

    Args:
      directory: The directory of the proxies: one file per session, named by it. All homes with
        the same directory share them, like a service.
      address: The result of `open_tunnel`.
      hang: Names of methods that never return: ``preflight``, ``create_proxy``, ``open_tunnel``,
        ``delete_proxy``. A create that hangs creates the proxy first.
      fail: Methods that raise, each with the error in the form of `SharedPathwaysError.to_json`. A
        create that fails creates the proxy first.
      service_failure: What `service_failure` returns, in that form.
      fail_deletes: The number of deletions that fail first.
      warning: The warning of `preflight`; empty: none.
      pod: The name of the proxies' pods; empty: they have none.
      place: Whether a proxy is placed by itself; otherwise `tell` gives its events.
    """

    name = "fake"

    def __init__(
        self,
        directory: str,
        *,
        address: str = "unix:/nowhere",
        hang: Sequence[str] = (),
        fail: Mapping[str, Any] | None = None,
        service_failure: Mapping[str, Any] | None = None,
        fail_deletes: int = 0,
        place: bool = True,
        pod: str = "",
        warning: str = "",
    ) -> None:
        self._directory = Path(directory)
        self._address = address
        self._hang = frozenset(hang)
        self._fail = dict(fail or {})
        self._service_failure = service_failure
        self._fail_deletes = fail_deletes
        self._place = place
        self._pod = pod
        self._warning = warning

    @property
    def proxies(self) -> list[str]:
        """Sessions that have a proxy."""
        return sorted(path.stem for path in self._directory.glob("*.proxy"))

    @property
    def calls(self) -> list[str]:
        """The calls of all homes with this directory, in order: ``METHOD SESSION``."""
        path = self._directory / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def tell(self, session: str, kind: str, reason: str = "", /, **data: Scalar) -> None:
        """Sends an event of a session's proxy to its followers."""
        self.tell_all(session, Event.of(kind, reason=reason, data=data))

    def tell_all(self, session: str, *events: Event) -> None:
        """Sends events of a session's proxy to its followers, which receive them together."""
        with self._news(session).open("a", encoding="utf-8") as file:
            file.write("".join(event.to_json() + "\n" for event in events))

    async def preflight(self, request: SessionRequest, tell: Tell) -> ServiceInfo:
        """Reports that it waits if it is scripted to hang, and returns as scripted."""
        if "preflight" in self._hang:
            pods = ("worker-1 is not ready",)
            tell(ServiceWaiting(reason="1 of 2 slices are ready", ready=1, wanted=2, pods=pods))
        await self._called("preflight", request.name)
        if self._warning:
            tell(ServiceWarning(reason=self._warning))
        return ServiceInfo(address="fake", version="0", instance_types=("tpuv6e:2x2",))

    async def create_proxy(
        self,
        request: SessionRequest,
        *,
        session: str,
        owner: Identity,  # noqa: ARG002
    ) -> ProxyHandle:
        """Creates the proxy's file, and returns as scripted."""
        path = self._proxy(session)
        path.write_text(json.dumps(request.to_json()), encoding="utf-8")
        if self._place:
            self.tell_all(session, *placed_news(request.tenant.type_names or ("tpuv6e:2x2",)))
        await self._called("create_proxy", session)
        token = "token"  # noqa: S105 - a fake's
        return ProxyHandle(name=request.name, uid=session, token=token, pod=self._pod)

    async def follow(self, handle: ProxyHandle) -> AsyncIterator[Event]:
        """Yields the proxy's events, until it is deleted or can no longer be watched."""
        sent = 0
        while self._proxy(handle.uid).exists():
            path = self._news(handle.uid)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            for line in lines[sent:]:
                news = Event.from_dict(json.loads(line))
                yield news
                if isinstance(news, HomeLost):
                    return
            sent = len(lines)
            await asyncio.sleep(_LOOK_S)
        yield ProxyDeleted(reason="its file is gone")

    async def open_tunnel(self, handle: ProxyHandle, local_port: int | None) -> str:
        """Returns the scripted address, or that of a port."""
        await self._called("open_tunnel", handle.uid)
        return self._address if local_port is None else f"127.0.0.1:{local_port}"

    async def service_failure(self, request: SessionRequest) -> SharedPathwaysError | None:
        """Returns as scripted."""
        await self._called("service_failure", request.name)
        return None if self._service_failure is None else from_json(self._service_failure)

    async def logs(self, handle: ProxyHandle, lines: int) -> list[str]:
        """Returns lines that name the proxy, unless it is scripted otherwise."""
        await self._called("logs", handle.uid)
        return [f"{handle.name} line {number}" for number in range(lines)][-3:]

    async def delete_proxy(self, name: str, uid: str, session: str) -> bool:
        """Removes the proxy's file, unless it is scripted to fail."""
        await self._called("delete_proxy", session)
        if self._fail_deletes > 0:
            self._fail_deletes -= 1
            raise ProxyFailed(f"deleting {name} fails, as told")
        existed = self._proxy(session).exists()
        if existed and uid in ("", session):
            self._proxy(session).unlink()
        return existed

    def counters(self) -> HomeCounters:
        """Returns empty counters."""
        return HomeCounters()

    async def close(self) -> None:
        """Does nothing."""

    def _proxy(self, session: str) -> Path:
        return self._directory / f"{session}.proxy"

    def _news(self, session: str) -> Path:
        return self._directory / f"{session}.news"

    async def _called(self, method: str, session: str) -> None:
        with (self._directory / "calls").open("a", encoding="utf-8") as file:
            file.write(f"{method} {session}\n")
        if method in self._hang:
            await asyncio.Event().wait()
        if method in self._fail:
            error: SharedPathwaysError = from_json(self._fail[method])
            raise error
