"""Manages one container of a pod: starts, probes and restarts it by its policy."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

from shared_pathways_service.testing.testbed.api import Object
from shared_pathways_service.testing.testbed.node_agent.commands import Commands
from shared_pathways_service.testing.testbed.node_agent.container import (
    Container,
    Isolation,
    LogFile,
    now,
)
from shared_pathways_service.testing.testbed.node_agent.container_probes import (
    until_ready,
    until_started,
)
from shared_pathways_service.testing.testbed.node_agent.entering import EnterScript
from shared_pathways_service.testing.testbed.node_agent.environment import CannotConfigure
from shared_pathways_service.testing.testbed.node_agent.images import CannotPull
from shared_pathways_service.testing.testbed.node_agent.pod_reporter import PodReporter
from shared_pathways_service.testing.testbed.node_agent.pod_status import (
    ContainerRecord,
    PodRecord,
    restarts,
)

__all__ = ["ContainerLife", "PodParts"]

#: Seconds before restarts of a container; the kubelet's are 10 to 300, too long for a test.
_BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
#: Seconds before the first restart, so that followers of the log see its end before.
_RESTART_S = 0.1
#: Seconds of running after which the back-off starts anew.
_BACK_OFF_RESET_S = 30.0
_PULL_BACK_OFF_S = 1.0
#: The maximum size of a container's termination message.
_TERMINATION_BYTES = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodParts:
    """The parts that the containers of one pod share.

    Attributes:
      pod: The pod as it was bound.
      ending: Set once the pod ends: no container is started any more.
    """

    pod: Object
    record: PodRecord
    commands: Commands
    reporter: PodReporter
    directory: Path
    isolation: Isolation
    ending: asyncio.Event


class ContainerLife:
    """Runs one container until its policy or the end of its pod ends it.

    Attributes:
      log: The log of its output.
      enter: The script that enters it.
      ended: Set once it has ended and is not restarted.
    """

    def __init__(self, specification: Object, record: ContainerRecord, pod: PodParts) -> None:
        self.record = record
        self.log = LogFile(pod.directory / f"{record.name}.log")
        self.enter = EnterScript(pod.directory / f"{record.name}.enter")
        self.ended = asyncio.Event()
        self._has_begun = False
        self._specification = specification
        self._pod = pod
        self._running: Container | None = None

    @property
    def pid(self) -> int | None:
        """Its process id on this machine; None if it is not running."""
        return None if self._running is None else self._running.pid

    @property
    def is_live(self) -> bool:
        """Whether it was begun, and has not ended."""
        return self._has_begun and not self.ended.is_set()

    def terminate(self) -> None:
        """Sends it SIGTERM, if it runs."""
        if self._running is not None:
            self._running.terminate()

    def kill(self) -> None:
        """Kills it, if it runs."""
        if self._running is not None:
            self._running.kill()

    async def run(self, started: asyncio.Event) -> None:
        """Runs it, and restarts it by its policy; sets `started` once it has, or never will."""
        self._has_begun = True
        try:
            await self._run(started)
        finally:
            self.ended.set()
            started.set()

    async def _run(self, started: asyncio.Event) -> None:
        record = self.record
        failures = 0
        while not self._pod.ending.is_set():
            container = await self._start()
            if container is None:
                if self._pod.ending.is_set() or not restarts(record.policy, record.exit_code or 1):
                    break
                failures += 1
                await self._back_off(record.state, failures)
                continue
            began = asyncio.get_running_loop().time()
            probing = asyncio.create_task(self._probe(container, started))
            code = await container.wait()
            probing.cancel()
            self._running = None
            self.enter.close()
            termination_file = self._pod.commands.termination_file(self._specification)
            ended = _terminated(code, container, self._specification, termination_file)
            record.started = record.ready = False
            if self._pod.ending.is_set() or not restarts(record.policy, code):
                record.state = ended
                self._pod.reporter.report(self._pod.record)
                break
            lasted = asyncio.get_running_loop().time() - began
            failures = 1 if lasted > _BACK_OFF_RESET_S else failures + 1
            await self._back_off(ended, failures)

    async def _back_off(self, ended: Object, failures: int) -> None:
        record, identity = self.record, self._pod.pod["metadata"]
        record.last_state = ended
        if failures == 1:
            await self._pause(_RESTART_S)
        else:
            pause = _BACK_OFF_S[min(failures - 1, len(_BACK_OFF_S)) - 1]
            message = (
                f"back-off {pause:g}s restarting failed container={record.name} "
                f"pod={identity['name']}_{identity['namespace']}({identity['uid']})"
            )
            record.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            self._pod.reporter.report(self._pod.record)
            self._pod.reporter.event("Warning", "BackOff", message)
            await self._pause(pause)
        if self._pod.ending.is_set():
            record.state = ended
            self._pod.reporter.report(self._pod.record)
        else:
            record.restarts += 1

    async def _start(self) -> Container | None:
        """Starts it once possible; returns None if the pod ends before that."""
        record = self.record
        while not self._pod.ending.is_set():
            try:
                return await self._try_to_start()
            except CannotPull as error:
                await self._cannot_pull(str(error))
            except CannotConfigure as error:
                waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
                record.state = {"waiting": waiting}
                self._pod.reporter.report(self._pod.record)
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
                self._pod.reporter.report(self._pod.record)
                return None
        return None

    async def _try_to_start(self) -> Container:
        argv, env = await self._pod.commands.of(self._specification)
        termination_file = self._pod.commands.termination_file(self._specification)
        termination_file.write_bytes(b"")
        termination_file.chmod(0o666)
        container = await Container.start(
            argv,
            env=env,
            directory=self._pod.directory,
            log=self.log,
            isolation=self._pod.isolation,
        )
        self._running = container
        if self._pod.ending.is_set():
            container.kill()  # its end was requested during the start
        await container.wait_for_process_1()
        if (pid := container.pid) is not None:
            entering = self._pod.isolation.entering
            self.enter.open(pid, entering, env, self._pod.directory)
        self.record.state = {"running": {"startedAt": container.started_at}}
        probes = {"startupProbe", "readinessProbe"} & self._specification.keys()
        self.record.started = "startupProbe" not in probes
        self.record.ready = not probes
        self._pod.reporter.report(self._pod.record)
        return container

    async def _cannot_pull(self, image: str) -> None:
        record = self.record
        message = f'failed to pull image "{image}": not found'
        for reason, text in (
            ("ErrImagePull", message),
            ("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {message}'),
        ):
            if self._pod.ending.is_set():
                return
            if record.state.get("waiting", {}).get("reason") == "ImagePullBackOff":
                await self._pause(_PULL_BACK_OFF_S)
                return
            record.state = {"waiting": {"reason": reason, "message": text}}
            self._pod.reporter.report(self._pod.record)
            if reason == "ErrImagePull":
                self._pod.reporter.event("Warning", "Failed", f"Failed to pull image: {text}")
                self._pod.reporter.event("Warning", "Failed", "Error: ErrImagePull")
            else:
                self._pod.reporter.event("Normal", "BackOff", text)
            await self._pause(_PULL_BACK_OFF_S)

    async def _probe(self, container: Container, started: asyncio.Event) -> None:
        record, address = self.record, self._pod.record.address
        if startup := self._specification.get("startupProbe"):
            if not await until_started(startup, address):
                message = f"Container {record.name} failed startup probe, will be restarted"
                self._pod.reporter.event("Normal", "Killing", message)
                container.kill()
                return
            record.started = True
        started.set()
        if readiness := self._specification.get("readinessProbe"):
            await until_ready(readiness, address)
        if not record.ready:
            record.ready = True
            self._pod.reporter.report(self._pod.record)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._pod.ending.wait()


def _terminated(
    code: int, container: Container, specification: Object, termination_file: Path
) -> Object:
    terminated: Object = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": container.started_at,
        "finishedAt": now(),
    }
    if message := termination_file.read_bytes()[-_TERMINATION_BYTES:].decode(errors="replace"):
        terminated["message"] = message
    elif code and specification.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        terminated["message"] = container.tail
    return {"terminated": terminated}
