"""Manages one pod: starts its containers in order, and ends them with a grace period."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.testing.testbed.api import Object
from shared_pathways_service.testing.testbed.node_agent.addresses import AddressBook
from shared_pathways_service.testing.testbed.node_agent.commands import Commands
from shared_pathways_service.testing.testbed.node_agent.container import Isolation, now
from shared_pathways_service.testing.testbed.node_agent.container_life import (
    ContainerLife,
    PodParts,
)
from shared_pathways_service.testing.testbed.node_agent.pod_reporter import PodReporter
from shared_pathways_service.testing.testbed.node_agent.pod_status import ContainerRecord, PodRecord
from shared_pathways_service.testing.testbed.node_agent.storage import Storage
from shared_pathways_service.testing.testbed.node_agent.volumes import Volumes

__all__ = ["PodLife", "Surroundings"]

_log = logging.getLogger(__name__)

#: Kubernetes' default of ``terminationGracePeriodSeconds``.
_GRACE_S = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all pods of a testbed share."""

    directory: Path
    addresses: AddressBook
    isolation: Isolation
    storage: Storage


class PodLife:
    """Runs a pod from its binding to a node until its removal.

    A pod on its node's network has the node's address.
    """

    def __init__(
        self, pod: Object, reporter: PodReporter, surroundings: Surroundings, node_address: str
    ) -> None:
        self.pod = pod
        self.namespace: str = pod["metadata"]["namespace"]
        self._spec: Mapping[str, Any] = pod["spec"]
        self._reporter = reporter
        self._shared = surroundings
        self._directory = surroundings.directory / pod["metadata"]["uid"]
        self._volumes = Volumes(pod, self._directory / "volumes", reporter, surroundings.storage)
        self._own_address = ""
        address = self._address(node_address)
        policy = self._spec.get("restartPolicy", "Always")
        initial = self._spec.get("initContainers") or ()
        records = [_record(c, c.get("restartPolicy", _init_policy(policy)), True) for c in initial]
        records += [_record(c, policy, False) for c in self._spec["containers"]]
        if initial:
            for record in records:
                record.state = {"waiting": {"reason": "PodInitializing"}}
        self._record = PodRecord(
            containers=records, address=address, node_address=LOOPBACK, started_at=now()
        )
        self._ending = asyncio.Event()
        parts = PodParts(
            pod=pod,
            record=self._record,
            commands=Commands(
                pod,
                self._record,
                directory=self._directory,
                addresses=surroundings.addresses,
                volumes=self._volumes,
                reporter=reporter,
            ),
            reporter=reporter,
            directory=self._directory,
            isolation=surroundings.isolation,
            ending=self._ending,
        )
        specifications = [*initial, *self._spec["containers"]]
        self._lives = [
            ContainerLife(specification, record, parts)
            for specification, record in zip(specifications, records, strict=True)
        ]
        self._life: asyncio.Task[None] | None = None
        self._mounting: asyncio.Task[None] | None = None
        self._end: asyncio.Task[None] | None = None
        self._ordered_end: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins."""
        self._life = asyncio.create_task(self._live(), name=f"pod-{self.pod['metadata']['name']}")

    def report(self) -> None:
        """Reports its status again."""
        self._reporter.report(self._record)

    def delete(self, grace_s: float) -> None:
        """Begins to end it, because its deletion was requested; only the first call counts."""
        if self._end is None:
            self._end = asyncio.create_task(self._delete(grace_s))

    async def vanish(self) -> None:
        """Ends it at once, without reporting it to the API server."""
        self._reporter.silence()
        if self._end is not None:
            self._end.cancel()
        await self._stop(0)
        if self._ordered_end is not None:
            await self._ordered_end
        await self._reporter.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._own_address:
            self._shared.addresses.give_back(self._own_address)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running containers on this machine."""
        return {life.record.name: life.pid for life in self._lives if life.pid is not None}

    async def _live(self) -> None:
        self._directory.mkdir(parents=True, mode=0o700)
        (self._directory / "tmp").mkdir()
        for life in self._lives:
            life.enter.close()
        logs = {life.record.name: life.log for life in self._lives}
        scripts = {life.record.name: life.enter for life in self._lives}
        await self._reporter.begin(self._record, logs, scripts, self._ports())
        self._mounting = asyncio.create_task(self._volumes.mount())
        if self._ending.is_set():
            self._mounting.cancel()
        await asyncio.wait([self._mounting])
        try:
            if not self._mounting.cancelled():
                self._mounting.result()
                await self._run()
        finally:
            await self._shared.storage.unmount(self.pod)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for life in self._lives_of(initial=True):
                if life.record.is_sidecar:
                    started = asyncio.Event()
                    group.create_task(life.run(started))
                    await started.wait()
                else:
                    await life.run(asyncio.Event())
                    if life.record.exit_code != 0:
                        await self._end_sidecars()
                        return
            self._record.initialized = True
            runs = [
                group.create_task(life.run(asyncio.Event()))
                for life in self._lives_of(initial=False)
            ]
            await asyncio.wait(runs)
            await self._end_sidecars()

    async def _delete(self, grace_s: float) -> None:
        self._reporter.event("Normal", "Killing", "Stopping its containers")
        await self._stop(grace_s)
        self._record.ending = True
        await self._reporter.delete(self._record)

    async def _stop(self, grace_s: float) -> None:
        self._ending.set()
        if self._life is None:
            return
        if self._mounting is not None:
            # It may wait for a Secret that never comes.
            self._mounting.cancel()
        if grace_s > 0:
            self._begin_to_end()
            await asyncio.wait([self._life], timeout=grace_s)
        # One that starts meanwhile sees that the pod ends.
        while not self._life.done():
            for life in self._lives:
                life.kill()
            await asyncio.wait([self._life], timeout=0.1)
        if not self._life.cancelled() and (error := self._life.exception()) is not None:
            _log.error("pod %s failed", self.pod["metadata"]["name"], exc_info=error)

    async def _end_sidecars(self) -> None:
        """Ends the sidecars, the only containers that are left."""
        self._ending.set()
        grace_s = float(self._spec.get("terminationGracePeriodSeconds", _GRACE_S))
        await asyncio.wait([self._begin_to_end()], timeout=grace_s)
        for life in self._lives:
            life.kill()

    def _begin_to_end(self) -> asyncio.Task[None]:
        if self._ordered_end is None:
            self._ordered_end = asyncio.create_task(self._end_in_order())
        return self._ordered_end

    async def _end_in_order(self) -> None:
        """Ends the containers, and then sidecars, the last one first."""
        sidecars = [life for life in self._lives if life.record.is_sidecar]
        others = [life for life in self._lives if not life.record.is_sidecar]
        for group in (others, *([life] for life in reversed(sidecars))):
            for life in group:
                life.terminate()
            await asyncio.gather(*(life.ended.wait() for life in group if life.is_live))

    def _address(self, node_address: str) -> str:
        name, service = self._spec.get("hostname"), self._spec.get("subdomain")
        if name and service:
            # On its node's network too: programs know it by this name, whose address stays.
            return self._shared.addresses.of_name(self.namespace, f"{name}.{service}")
        if self._spec.get("hostNetwork"):
            return node_address
        self._own_address = self._shared.addresses.take()
        return self._own_address

    def _lives_of(self, *, initial: bool) -> list[ContainerLife]:
        return [life for life in self._lives if life.record.initial == initial]

    def _ports(self) -> list[int]:
        containers = [*(self._spec.get("initContainers") or ()), *self._spec["containers"]]
        ports = {port["containerPort"] for c in containers for port in c.get("ports") or ()}
        return sorted(ports)


def _record(container: Object, policy: str, initial: bool) -> ContainerRecord:
    return ContainerRecord(
        name=container["name"], image=container["image"], policy=policy, initial=initial
    )


def _init_policy(of_pod: str) -> str:
    """Init containers run until they succeed, unless nothing is started again."""
    return "Never" if of_pod == "Never" else "OnFailure"
