"""Runs the resource manager and the workers, and restarts them when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from shared_pathways_service.constants import CPU
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.events import Event
from shared_pathways_service.events.supervisor import ProcessEnded, ProcessGivenUp, SliceDisturbed
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import ServiceLogs, tail_of
from shared_pathways_service.servers.supervisor.background import Background
from shared_pathways_service.servers.supervisor.child import Child
from shared_pathways_service.servers.supervisor.command_lines import (
    Host,
    hosts_of,
    resource_manager_command,
    worker_command,
)
from shared_pathways_service.servers.supervisor.hold import Disturbance, Hold
from shared_pathways_service.servers.supervisor.restarts import RestartPolicy

__all__ = ["Fleet", "Member"]


class Member:
    """A process that is restarted when it ends: ``rm``, or a worker such as ``slice-0-0``.

    Attributes:
      slice_id: Empty for the resource manager.
      child: The current process, or the last one; None: not started yet.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        policy: RestartPolicy,
        *,
        role: str,
        name: str,
        slice_id: str = "",
        hold: Hold | None = None,
        platform: str = CPU,
    ) -> None:
        self.role = role
        self.name = name
        self.slice_id = slice_id
        self.child: Child | None = None
        self.restarts = 0
        self._command = command
        self._policy = policy
        self._hold = hold
        self._platform = platform

    async def start(self, logs: ServiceLogs) -> Child:
        """Starts or restarts the process."""
        self.child = await Child.start(
            self._command,
            role=self.role,
            name=self.name,
            log=logs.path(self.name),
            platform=self._platform,
        )
        if self._hold is not None:
            # A disturbance that began meanwhile did not find this process.
            self._hold.apply_to(self.child)
        return self.child

    async def keep_up(
        self,
        child: Child,
        logs: ServiceLogs,
        report: Callable[[Event], object],
        on_change: Callable[[], None],
    ) -> None:
        """Runs until the process may not be restarted; if cancelled, leaves the child to `stop`."""
        while True:
            code = await child.wait()
            asked = self._hold is not None and self._hold.excuses(child)
            delay = 0.0 if asked else self._policy.next_delay(child.lived_s)
            # Its last message explains an end by itself; the cause of a signal is elsewhere.
            said = tail_of(child.log, 1) if code >= 0 else []
            ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
            change = ProcessGivenUp if delay is None else ProcessEnded
            report(
                change(
                    source=self.role,
                    slice=self.slice_id or None,
                    reason="; ".join([ended, *said, *(["disturbed on purpose"] if asked else [])]),
                    name=self.name,
                    exit_code=code,
                    restarts=self.restarts,
                )
            )
            on_change()
            if delay is None:
                return
            await asyncio.sleep(delay)
            if self._hold is not None:
                await self._hold.ended.wait()
            self.restarts += 1
            child = await self.start(logs)
            on_change()

    async def stop(self) -> None:
        """Ends the child, if there is one."""
        if self.child is not None:
            await self.child.stop(timeouts.SERVER_GRACE)


class Fleet:
    """All members of the service; made once, started once, stopped once."""

    def __init__(
        self,
        paths: RuntimePaths,
        options: SupervisorOptions,
        *,
        logs: ServiceLogs,
        background: Background,
        report: Callable[[Event], object],
        on_change: Callable[[], None],
    ) -> None:
        self._logs = logs
        self._background = background
        self._report = report
        self._on_change = on_change
        self.resource_manager = Member(
            lambda fd: resource_manager_command(
                paths, options, fd, first_start=self.resource_manager.child is None
            ),
            RestartPolicy(),
            role="rm",
            name="rm",
        )
        # The hosts of a slice share its restart limit.
        hosts = hosts_of(options)
        policies = {host.slice_id: RestartPolicy(options.max_slice_restarts) for host in hosts}
        self._holds = {host.slice_id: Hold() for host in hosts}
        self.workers = [
            self._worker(paths, options, host, policies[host.slice_id], self._holds[host.slice_id])
            for host in hosts
        ]

    @staticmethod
    def _worker(
        paths: RuntimePaths,
        options: SupervisorOptions,
        host: Host,
        policy: RestartPolicy,
        hold: Hold,
    ) -> Member:
        return Member(
            lambda fd: worker_command(paths, options, host, fd),
            policy,
            role="worker",
            name=f"{host.slice_id}-{host.index}",
            slice_id=host.slice_id,
            hold=hold,
            platform=options.platform,
        )

    @property
    def members(self) -> list[Member]:
        """The resource manager, then the workers."""
        return [self.resource_manager, *self.workers]

    async def start(self) -> None:
        """Starts all concurrently, and restarts them when they end."""
        children = await asyncio.gather(*(member.start(self._logs) for member in self.members))
        for member, child in zip(self.members, children, strict=True):
            self._background.start(member.keep_up(child, self._logs, self._report, self._on_change))

    def disturb(self, slice_id: str, kind: Disturbance, hold_s: float) -> int:
        """Kills or stops the workers of a slice, or restores it (see `Hold`); returns how many."""
        if slice_id not in self._holds:
            raise ServiceNotFound(
                f"the service has no slice {slice_id[:100]!r}",
                candidates=list(self._holds),
                hint=f"its slices are {', '.join(self._holds)}",
            )
        workers = [w.child for w in self.workers if w.slice_id == slice_id and w.child is not None]
        count = self._holds[slice_id].begin(kind, hold_s, workers)
        self._report(
            SliceDisturbed(slice=slice_id, reason=kind.value, hold_s=hold_s, workers=count)
        )
        return count

    async def stop(self) -> None:
        """Ends the workers, then the resource manager, after their restarts were stopped."""
        for hold in self._holds.values():
            hold.end()  # a stopped process does not handle SIGTERM
        await asyncio.gather(*(worker.stop() for worker in self.workers))
        await self.resource_manager.stop()

    def kill(self) -> None:
        """Kills all at once; call `stop` afterwards."""
        for member in self.members:
            if member.child is not None:
                member.child.kill()
