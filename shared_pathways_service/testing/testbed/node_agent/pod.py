"""The life of one pod: its containers are started, restarted, and ended with their grace."""

from __future__ import annotations

import asyncio
import contextlib
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
from shared_pathways_service.testing.testbed.node_agent.container import (
    Container,
    Isolation,
    LogFile,
    now,
)
from shared_pathways_service.testing.testbed.node_agent.entering import EnterScript
from shared_pathways_service.testing.testbed.node_agent.environment import CannotConfigure
from shared_pathways_service.testing.testbed.node_agent.images import CannotPull
from shared_pathways_service.testing.testbed.node_agent.probes import until_ready
from shared_pathways_service.testing.testbed.node_agent.reporting import PodReporter
from shared_pathways_service.testing.testbed.node_agent.status import (
    ContainerRecord,
    PodRecord,
    restarts,
)
from shared_pathways_service.testing.testbed.node_agent.volumes import Volumes

__all__ = ["PodLife", "Surroundings"]

_log = logging.getLogger(__name__)

#: Seconds before a container that keeps ending is started again, more and more.
#: The kubelet's are 10 to 300; nobody waits for those in a test.
_BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
#: The first time; those who follow its log see the end of that before.
_RESTART_S = 0.1
#: Seconds of running after which it counts as new.
_BACK_OFF_RESET_S = 30.0
_PULL_BACK_OFF_S = 1.0
#: Of a container's termination message.
_LAST_WORDS_BYTES = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all pods of a testbed share."""

    directory: Path
    addresses: AddressBook
    isolation: Isolation


class PodLife:
    """Lives a pod from when it is bound to a node to when nothing is left of it.

    Args:
      pod: As it was bound.
      reporter: Tells the API server.
      surroundings: What pods share.
      node_address: For pods on their node's network.
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
        self._volumes = Volumes(pod, self._directory / "volumes", reporter)
        self._own_address = ""
        address = self._address(node_address)
        policy = self._spec.get("restartPolicy", "Always")
        initial = self._spec.get("initContainers") or ()
        records = [_record(c, c.get("restartPolicy", _init_policy(policy)), True) for c in initial]
        records += [_record(c, policy, False) for c in self._spec["containers"]]
        self._record = PodRecord(
            containers=records, address=address, node_address=LOOPBACK, started_at=now()
        )
        self._commands = Commands(
            pod,
            self._record,
            directory=self._directory,
            addresses=surroundings.addresses,
            volumes=self._volumes,
            reporter=reporter,
        )
        self._enter = {r.name: EnterScript(self._directory / f"{r.name}.enter") for r in records}
        self._logs = {r.name: LogFile(self._directory / f"{r.name}.log") for r in records}
        self._running: dict[str, Container] = {}
        self._ending = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._mounting: asyncio.Task[None] | None = None
        self._end: asyncio.Task[None] | None = None

    # ---- what the node agent does

    def start(self) -> None:
        """Begins."""
        self._life = asyncio.create_task(self._live(), name=f"pod-{self.pod['metadata']['name']}")

    def tell(self) -> None:
        """Has its status written again."""
        self._reporter.tell(self._record)

    def delete(self, grace_s: float) -> None:
        """Begins to end it, as its deletion was asked for; once."""
        if self._end is None:
            self._end = asyncio.create_task(self._delete(grace_s))

    async def vanish(self) -> None:
        """Ends it at once, without a word to the API server."""
        if self._end is not None:
            self._end.cancel()
        await self._stop(0)
        await self._reporter.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._own_address:
            self._shared.addresses.give_back(self._own_address)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running containers, as this machine numbers them."""
        pids = {name: container.pid for name, container in self._running.items()}
        return {name: pid for name, pid in pids.items() if pid is not None}

    # ---- its life

    async def _live(self) -> None:
        self._directory.mkdir(parents=True, mode=0o700)
        (self._directory / "tmp").mkdir()
        for script in self._enter.values():
            script.close()
        await self._reporter.begin(self._record, self._logs, self._enter, self._ports())
        self._mounting = asyncio.create_task(self._volumes.mount())
        if self._ending.is_set():
            self._mounting.cancel()
        await asyncio.wait([self._mounting])
        if self._mounting.cancelled():
            return
        self._mounting.result()
        async with asyncio.TaskGroup() as group:
            for container, record in self._containers(initial=True):
                if record.is_sidecar:
                    started = asyncio.Event()
                    group.create_task(self._run(container, record, started))
                    await started.wait()
                else:
                    await self._run(container, record, asyncio.Event())
                    if record.exit_code != 0:
                        self._ending.set()
                        self._stop_sidecars()
                        return
            self._record.initialized = True
            runs = [
                group.create_task(self._run(container, record, asyncio.Event()))
                for container, record in self._containers(initial=False)
            ]
            await asyncio.wait(runs)
            self._ending.set()
            self._stop_sidecars()

    async def _run(
        self, specification: Object, record: ContainerRecord, started: asyncio.Event
    ) -> None:
        """Runs a container, again and again as its policy says."""
        failures = 0
        while not self._ending.is_set():
            container = await self._start(specification, record)
            if container is None:
                break
            began = asyncio.get_running_loop().time()
            ready = asyncio.create_task(self._follow_readiness(specification, record))
            started.set()
            code = await container.wait()
            ready.cancel()
            self._running.pop(record.name, None)
            self._enter[record.name].close()
            last_words = self._commands.last_words(specification)
            ended = _terminated(code, container, specification, last_words)
            record.ready = False
            if self._ending.is_set() or not restarts(record.policy, code):
                record.state = ended
                self._reporter.tell(self._record)
                break
            lasted = asyncio.get_running_loop().time() - began
            failures = 1 if lasted > _BACK_OFF_RESET_S else failures + 1
            await self._back_off(record, ended, failures)
        started.set()

    async def _back_off(self, record: ContainerRecord, ended: Object, failures: int) -> None:
        record.last_state = ended
        if failures == 1:
            await self._pause(_RESTART_S)
        else:
            pause = _BACK_OFF_S[min(failures - 1, len(_BACK_OFF_S)) - 1]
            message = (
                f"back-off {pause:g}s restarting failed container={record.name} "
                f"pod={self.pod['metadata']['name']}_{self.namespace}({self.pod['metadata']['uid']})"
            )
            record.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            self._reporter.tell(self._record)
            self._reporter.event("Warning", "BackOff", message)
            await self._pause(pause)
        if self._ending.is_set():
            record.state = ended
            self._reporter.tell(self._record)
        else:
            record.restarts += 1

    async def _start(self, specification: Object, record: ContainerRecord) -> Container | None:
        """Starts a container once it can be; None when the pod ends before that."""
        while not self._ending.is_set():
            try:
                return await self._try_to_start(specification, record)
            except CannotPull as error:
                await self._cannot_pull(record, str(error))
            except CannotConfigure as error:
                waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
                record.state = {"waiting": waiting}
                self._reporter.tell(self._record)
                await self._pause(_PULL_BACK_OFF_S)
            except OSError as error:
                code = 127 if isinstance(error, FileNotFoundError) else 126
                record.state = {
                    "terminated": {
                        "exitCode": code,
                        "reason": "StartError",
                        "message": str(error),
                        "startedAt": now(),
                        "finishedAt": now(),
                    }
                }
                self._reporter.tell(self._record)
                return None
        return None

    async def _try_to_start(self, specification: Object, record: ContainerRecord) -> Container:
        argv, env = await self._commands.of(specification)
        last_words = self._commands.last_words(specification)
        last_words.write_bytes(b"")
        last_words.chmod(0o666)
        container = await Container.start(
            argv,
            env=env,
            directory=self._directory,
            log=self._logs[record.name],
            isolation=self._shared.isolation,
        )
        self._running[record.name] = container
        if self._ending.is_set():
            container.kill()  # it was told to end while this was on its way
        await container.wait_for_process_1()
        if (pid := container.pid) is not None:
            entering = self._shared.isolation.entering
            self._enter[record.name].open(pid, entering, env, self._directory)
        record.state = {"running": {"startedAt": container.started_at}}
        record.ready = not specification.get("readinessProbe")
        self._reporter.tell(self._record)
        return container

    async def _cannot_pull(self, record: ContainerRecord, image: str) -> None:
        message = f'failed to pull image "{image}": not found'
        for reason, text in (
            ("ErrImagePull", message),
            ("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {message}'),
        ):
            if self._ending.is_set():
                return
            if record.state.get("waiting", {}).get("reason") == "ImagePullBackOff":
                await self._pause(_PULL_BACK_OFF_S)
                return
            record.state = {"waiting": {"reason": reason, "message": text}}
            self._reporter.tell(self._record)
            if reason == "ErrImagePull":
                self._reporter.event("Warning", "Failed", f"Failed to pull image: {text}")
                self._reporter.event("Warning", "Failed", "Error: ErrImagePull")
            else:
                self._reporter.event("Normal", "BackOff", text)
            await self._pause(_PULL_BACK_OFF_S)

    async def _follow_readiness(self, specification: Object, record: ContainerRecord) -> None:
        if probe := specification.get("readinessProbe"):
            await until_ready(probe, self._record.address)
            record.ready = True
            self._reporter.tell(self._record)

    # ---- its end

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
            for container in self._running.values():
                container.terminate()
            await asyncio.wait([self._life], timeout=grace_s)
        # One that starts meanwhile sees that the pod ends.
        while not self._life.done():
            for container in list(self._running.values()):
                container.kill()
            await asyncio.wait([self._life], timeout=0.1)
        if not self._life.cancelled() and (error := self._life.exception()) is not None:
            _log.error("pod %s failed", self.pod["metadata"]["name"], exc_info=error)

    def _stop_sidecars(self) -> None:
        for container in self._running.values():
            container.terminate()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    # ---- what it has

    def _address(self, node_address: str) -> str:
        name, service = self._spec.get("hostname"), self._spec.get("subdomain")
        if name and service:
            # On its node's network too: programs know it by this name, whose address stays.
            return self._shared.addresses.of_name(self.namespace, f"{name}.{service}")
        if self._spec.get("hostNetwork"):
            return node_address
        self._own_address = self._shared.addresses.take()
        return self._own_address

    def _containers(self, *, initial: bool) -> list[tuple[Object, ContainerRecord]]:
        specifications = self._spec.get("initContainers" if initial else "containers") or ()
        records = [r for r in self._record.containers if r.initial == initial]
        return list(zip(specifications, records, strict=True))

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


def _terminated(code: int, container: Container, specification: Object, last_words: Path) -> Object:
    terminated: Object = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": container.started_at,
        "finishedAt": now(),
    }
    if message := last_words.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace"):
        terminated["message"] = message
    elif code and specification.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        terminated["message"] = container.tail
    return {"terminated": terminated}
