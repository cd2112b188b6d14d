"""The state file: clients find the service by it, and a start finds leftovers of a killed one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from filelock import Timeout

from shared_pathways_service.errors import PreflightError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.service_lock import ServiceLock
from shared_pathways_service.runtime.file_failures import named
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.processes import Identity, Life, signal_process

__all__ = [
    "ServiceState",
    "check_not_elsewhere",
    "claim",
    "kill_children",
    "read_state",
    "write_private",
    "write_state",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceState:
    """A service that runs, or was killed.

    Attributes:
      slices: Slices for tenants by instance type, in the given order.
      spares: Additional slices of each type.
      since: Start of the service, RFC 3339.
      detached: Whether it ends when it is idle.
      children: Its processes, except itself.
    """

    supervisor: Identity
    address: str
    version: str
    protocol_min: int
    protocol_max: int
    slices: Mapping[str, int]
    spares: int
    since: str
    detached: bool
    log_dir: str
    children: tuple[Identity, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServiceState:
        """Makes the state from the state file's plain data; ignores fields of newer versions."""
        names = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in names}
        values["supervisor"] = Identity.from_json(data["supervisor"])
        values["children"] = tuple(map(Identity.from_json, data.get("children", ())))
        return cls(**values)

    @property
    def elsewhere(self) -> str:
        """The machine that the service belongs to, if it is another one; else empty.

        (State files of earlier releases do not say it, and are taken for this machine's.)
        """
        machine = self.supervisor.machine
        return machine if machine and self.supervisor.life() is Life.UNKNOWN else ""


def read_state(paths: RuntimePaths) -> ServiceState | None:
    """Returns the content of the state file; None if there is none, or it is invalid."""
    try:
        return ServiceState.from_json(json.loads(paths.state.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        glog("W", f"{paths.state} is ignored: {error!r}")
        return None


def write_state(paths: RuntimePaths, state: ServiceState) -> None:
    """Replaces the state file atomically."""
    write_private(paths.state, json.dumps(dataclasses.asdict(state)).encode())


def write_private(path: Path, data: bytes) -> None:
    """Writes a file atomically, readable by its user only."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with named(path), os.fdopen(descriptor, "wb") as file:
        file.write(data)
    new.replace(path)


def kill_children(paths: RuntimePaths, pids: Collection[int]) -> int:
    """Kills those of these processes that belong to the running service; returns their number."""
    state = read_state(paths)
    known = [] if state is None else [child for child in state.children if child.pid in pids]
    return sum(signal_process(child, signal.SIGKILL) for child in known)


@contextlib.contextmanager
def claim(paths: RuntimePaths) -> Iterator[ServiceLock]:
    """Makes this process the only service of the directory for the block, after cleaning up."""
    lock = ServiceLock(paths)
    try:
        lock.acquire(timeouts.SERVICE_LOCK.s)
    except Timeout:
        raise _already_running(paths) from None
    try:
        check_not_elsewhere(paths, read_state(paths))
        try:
            _clean_up(paths)
            yield lock
        finally:
            # (What is in a directory that replaced ours is another service's.)
            if not lock.is_lost():
                _remove(paths.leftovers())
    finally:
        lock.release()


def check_not_elsewhere(paths: RuntimePaths, state: ServiceState | None) -> None:
    """Refuses a directory with a service of another machine, which may run.

    Raises:
      PreflightError: It has one.
    """
    if state is not None and state.elsewhere:
        _, _, host = state.elsewhere.partition("@")
        raise PreflightError(
            f"{paths.directory} has an embedded service of another machine, {host}",
            hint="set SPS_RUNTIME_DIR to a directory that is not shared; if that service has "
            f"ended, remove {paths.state}",
        )


def _already_running(paths: RuntimePaths) -> PreflightError:
    state = read_state(paths)
    # (A service that starts may not have replaced the file of one that was killed.)
    if state is None or not state.supervisor.is_alive():
        return PreflightError(f"another service is just starting or ending in {paths.directory}")
    pid = state.supervisor.pid
    how = (
        f"end it with `kill {pid}` (it also ends by itself soon after its last user)"
        if state.detached
        else f"end it with Ctrl-C in its terminal or `kill {pid}`"
    )
    slices = ", ".join(f"{kind}={count}" for kind, count in state.slices.items())
    return PreflightError(
        f"you already have a running service: process {pid} with {slices}, "
        f"since {state.since}, in {paths.directory}",
        hint=f"use it (`sps status` shows its users), {how}, or set SPS_RUNTIME_DIR for a second "
        "service",
    )


def _clean_up(paths: RuntimePaths) -> None:
    """Removes leftovers of a killed supervisor: we hold the lock, so it has ended."""
    state = read_state(paths)
    children = state.children if state else ()
    stale = [child.pid for child in children if signal_process(child, signal.SIGKILL)]
    for pid in stale:
        glog("W", f"killed process {pid}, left behind by a service that was killed")
    for pid in stale:
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).wait(timeouts.KILLED_PROCESSES.s)
    _remove(paths.leftovers())


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
