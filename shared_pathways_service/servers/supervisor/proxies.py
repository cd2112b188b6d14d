"""Runs the tenants' proxies, from the request to the release of their slices."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from shared_pathways_service.errors import InvalidRequestError, PreflightError, ServiceNotReady
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import ProxyServing
from shared_pathways_service.events.supervisor import ProxyEnded, ProxyStarted
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import tail_of
from shared_pathways_service.runtime.embedded.state_file import write_private
from shared_pathways_service.runtime.file_failures import explained_by_path
from shared_pathways_service.runtime.processes import Identity
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.serving.last_requests_file import read_unfinished
from shared_pathways_service.servers.serving.process import ProcessWatch
from shared_pathways_service.servers.supervisor.child import Child, ChildEnded
from shared_pathways_service.servers.supervisor.command_lines import ProxyRequest, proxy_arguments
from shared_pathways_service.servers.supervisor.endings import (
    explain_crash,
    read_exit_report,
    reason_of,
)
from shared_pathways_service.servers.supervisor.manager_link import ManagerLink
from shared_pathways_service.servers.supervisor.occupancy import Occupancy
from shared_pathways_service.servers.supervisor.shared_memory import SharedMemory
from shared_pathways_service.servers.supervisor.standby import StandbyPool
from shared_pathways_service.servers.supervisor.tenant_proxy import TenantProxy

__all__ = ["NameTaken", "Proxies"]

#: The number of ended proxies to keep for queries.
_ENDED_KEPT = 100
_ENDED_KEPT_S = 600.0


class NameTaken(Exception):  # noqa: N818 - the name of the status
    """Another session has a proxy of this name."""


class Proxies:
    """All proxies of the service, including recently ended ones."""

    def __init__(
        self,
        paths: RuntimePaths,
        options: SupervisorOptions,
        settings: Settings,
        *,
        standby: StandbyPool,
        shared_memory: SharedMemory,
        manager: ManagerLink,
        occupancy: Occupancy,
        report: Callable[[Event], object],
        on_change: Callable[[], None],
    ) -> None:
        self._paths = paths
        self._options = options
        self._settings = settings
        self._standby = standby
        self._shared_memory = shared_memory
        self._manager = manager
        self._occupancy = occupancy
        self._report = report
        self._on_change = on_change
        self._by_name: dict[str, TenantProxy] = {}
        self._lives: dict[TenantProxy, asyncio.Task[None]] = {}

    def all(self) -> list[TenantProxy]:
        """Returns the running and the recently ended proxies."""
        return list(self._by_name.values())

    @property
    def children(self) -> list[Child]:
        """The running processes."""
        found = [proxy.child for proxy in self._lives if proxy.child is not None]
        return [child for child in found if child.exit_code is None]

    def find(self, name: str) -> TenantProxy | None:
        """Returns the latest proxy of a name."""
        return self._by_name.get(name)

    async def create(self, request: ProxyRequest) -> TenantProxy:
        """Starts a proxy, or returns the one that the same session requested before."""
        while known := self._by_name.get(request.tenant.name):
            if known.request.session == request.session:
                return known
            if not known.is_over:
                raise NameTaken(f"{request.tenant.name} is the proxy of another session")
            if known not in self._lives:
                break
            # Its slices are not released yet: a release by name would hit the new proxy.
            await asyncio.wait({self._lives[known]})
        owner = Identity(pid=request.owner_pid, start=request.owner_start)
        if owner.pid and not owner.is_alive():
            raise InvalidRequestError("owner_pid", owner.pid, "a running process")
        if not self._occupancy.enter():
            raise ServiceNotReady("the service is ending", hint="start a new service")
        self._forget_old()
        proxy = TenantProxy(request, self._standby.log_of(request.tenant.name))
        proxy.change(transfer_dir=str(self._shared_memory.make(proxy.uid) or ""))
        self._by_name[request.tenant.name] = proxy
        self._lives[proxy] = asyncio.create_task(self._live(proxy))
        return proxy

    async def delete(self, name: str, reason: str, *, uid: str = "", session: str = "") -> bool:
        """Ends a running proxy, of this uid and session if given; returns whether there was one."""
        proxy = self._by_name.get(name)
        if proxy is None or uid not in {"", proxy.uid}:
            return False
        if session not in {"", proxy.request.session}:
            return False
        lived = not proxy.is_over
        proxy.end(reason)
        if proxy in self._lives:
            await asyncio.wait({self._lives[proxy]})
        return lived

    async def stop(self) -> None:
        """Ends all; does not wait for a resource manager that does not answer."""
        for proxy in self._lives:
            proxy.end("the service is ending")
        lives = set(self._lives.values())
        if lives:
            await asyncio.wait(lives, timeout=timeouts.PROXY_GRACE.s + timeouts.PROXY_RELEASE.s)
        await self._manager.close()
        await asyncio.gather(*lives, return_exceptions=True)

    def kill(self) -> None:
        """Kills all at once; call `stop` afterwards."""
        for proxy in self._lives:
            proxy.end("the service was killed")
            if proxy.child is not None:
                proxy.child.kill()

    # ---- one proxy

    async def _live(self, proxy: TenantProxy) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._on_change)
            loop = asyncio.get_running_loop()
            stack.callback(lambda: self._occupancy.leave(loop.time()))
            stack.callback(self._lives.pop, proxy)
            code: int | None = None
            failure = ""
            try:
                with explained_by_path(self._settings.directories):
                    stack.enter_context(self._files_of(proxy))
                    code = await self._run(proxy)
            except (OSError, PreflightError) as error:
                failure = str(error)
            await self._finish(proxy, code, failure)

    async def _run(self, proxy: TenantProxy) -> int:
        """Runs the process to its end; returns its exit code."""
        child = proxy.child = await self._launch(proxy)
        with contextlib.ExitStack() as stack:
            self._end_with_owner(proxy, stack)
            if proxy.request.tenant.max_lifetime_s is not None:
                lifetime = proxy.request.tenant.max_lifetime_s
                timer = asyncio.get_running_loop().call_later(
                    lifetime, proxy.end, f"its max_lifetime of {lifetime:g} s is over"
                )
                stack.callback(timer.cancel)
            proxy.change(pid=child.identity.pid)
            self._on_change()
            self._report(ProxyStarted(tenant=proxy.request.tenant.name, pid=child.identity.pid))
            serving = asyncio.create_task(self._wait_until_serving(proxy, child))
            ended = asyncio.create_task(child.wait())
            asked = asyncio.create_task(proxy.end_requested.wait())
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            await child.stop(timeouts.PROXY_GRACE)
            await serving
            self._standby.refill()
            return await ended

    async def _launch(self, proxy: TenantProxy) -> Child:
        request = proxy.request

        def arguments(ready_fd: int) -> list[str]:
            return proxy_arguments(
                self._paths,
                self._options,
                request,
                settings=self._settings,
                uid=proxy.uid,
                transfer_dir=proxy.transfer_dir,
                ready_fd=ready_fd,
            )

        if request.xla_flags:
            return await self._standby.launch_cold(request.tenant.name, arguments)
        return await self._standby.launch(request.tenant.name, arguments)

    async def _wait_until_serving(self, proxy: TenantProxy, child: Child) -> None:
        with contextlib.suppress(ChildEnded):
            serving = await child.serving()
            proxy.change(
                state=pb.Proxy.SERVING, address=f"unix:{serving.socket}", tcp_port=serving.port
            )
            self._report(ProxyServing(source="supervisor", tenant=proxy.request.tenant.name))
            self._standby.refill()

    async def _finish(self, proxy: TenantProxy, code: int | None, failure: str) -> None:
        """Releases the slices, then reports the end, or the failure to start it."""
        report = read_exit_report(self._paths.exit_report(proxy.uid))
        reason = proxy.end_reason or failure or reason_of(code, report)
        if not proxy.end_reason and code is not None and code < 0:
            unfinished = read_unfinished(self._paths.last_requests(proxy.uid))
            reason = explain_crash(reason, unfinished, proxy.log)
        release = asyncio.create_task(self._manager.release(proxy.request.tenant.name, reason))
        await asyncio.wait({release}, timeout=timeouts.PROXY_RELEASE.s)
        proxy.ended_at = time.monotonic()
        proxy.change(
            state=pb.Proxy.DELETED if proxy.end_reason else pb.Proxy.EXITED,
            exit_code=code,
            reason=reason,
            exit_report=report,
            log_tail=tail_of(proxy.log),
        )
        self._report(ProxyEnded(tenant=proxy.request.tenant.name, reason=reason, exit_code=code))
        await release

    def _end_with_owner(self, proxy: TenantProxy, stack: contextlib.ExitStack) -> None:
        request = proxy.request
        if not request.owner_pid:
            return
        loop = asyncio.get_running_loop()

        def on_end() -> None:
            reason = f"its owner, process {request.owner_pid}, has ended"
            loop.call_soon_threadsafe(proxy.end, reason)

        owner = Identity(pid=request.owner_pid, start=request.owner_start)
        stack.callback(ProcessWatch(owner, on_end).close)

    @contextlib.contextmanager
    def _files_of(self, proxy: TenantProxy) -> Iterator[None]:
        token = self._paths.proxy_token(proxy.uid)
        try:
            write_private(token, proxy.token.encode())
            yield
        finally:
            for path in (
                token,
                self._paths.exit_report(proxy.uid),
                self._paths.last_requests(proxy.uid),
                self._paths.proxy_socket(proxy.uid),
            ):
                path.unlink(missing_ok=True)
            self._shared_memory.remove(proxy.uid)

    def _forget_old(self) -> None:
        ended = [p for p in self._by_name.values() if p.ended_at and p not in self._lives]
        ended.sort(key=lambda p: p.ended_at or 0.0)
        limit = time.monotonic() - _ENDED_KEPT_S
        for index, proxy in enumerate(ended):
            if index < len(ended) - _ENDED_KEPT or (proxy.ended_at or 0.0) < limit:
                del self._by_name[proxy.request.tenant.name]
