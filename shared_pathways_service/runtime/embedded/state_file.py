"""The state file: how clients find the service, and how a start finds what a killed one left."""

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
from filelock import FileLock, Timeout

from shared_pathways_service.errors import PreflightError
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.processes import Identity, signal_process

__all__ = ["ServiceState", "claim", "kill_children", "read_state", "write_private", "write_state"]

#: Seconds that killed processes may take to be gone.
_GONE_S = 10.0
#: A client that looks whether anybody holds the lock has it for a moment.
_LOOK_S = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceState:
    """A service that runs, or ran when it was killed.

    Attributes:
      supervisor: The supervisor's process.
      address: Where it serves, ``unix:/…``.
      version: Of the package.
      slices: Slices that can be had at once, by instance type, in the order given.
      spares: Of each type, in addition.
      since: RFC 3339.
      detached: Whether it ends when nobody uses it.
      log_dir: Where its logs are.
      children: Its processes, but for itself.
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

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServiceState:
        """Makes the state that `to_json` described; fields of a newer version are dropped."""
        names = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in names}
        values["supervisor"] = Identity(**data["supervisor"])
        values["children"] = tuple(Identity(**c) for c in data.get("children", ()))
        return cls(**values)


def read_state(paths: RuntimePaths) -> ServiceState | None:
    """Returns what the state file says; None when there is none, or none that makes sense."""
    try:
        return ServiceState.from_json(json.loads(paths.state.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        glog("W", f"{paths.state} is passed over: {error!r}")
        return None


def write_state(paths: RuntimePaths, state: ServiceState) -> None:
    """Replaces the state file; a reader sees the old or the new one."""
    write_private(paths.state, json.dumps(state.to_json()).encode())


def write_private(path: Path, data: bytes) -> None:
    """Puts a file in place at once, readable by its user only."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    new.replace(path)


def kill_children(paths: RuntimePaths, pids: Collection[int]) -> int:
    """Kills processes of the service that runs, as it told of them, and no others.

    Args:
      paths: Where the service is.
      pids: Their ids, by themselves no proof of who they are.

    Returns:
      How many were killed.
    """
    state = read_state(paths)
    known = [] if state is None else [child for child in state.children if child.pid in pids]
    return sum(signal_process(child, signal.SIGKILL) for child in known)


@contextlib.contextmanager
def claim(paths: RuntimePaths) -> Iterator[None]:
    """Makes this process the one service of the directory, cleaned up first, for the block.

    Raises:
      PreflightError: Another one runs; its message says which.
    """
    # The system gives the lock back when this process ends, however it ends.
    lock = FileLock(paths.service_lock, mode=0o600)
    try:
        lock.acquire(timeout=_LOOK_S)
    except Timeout:
        raise _already_running(paths) from None
    try:
        _clean_up(paths)
        yield
    finally:
        _remove(paths.leftovers())
        lock.release()


def _already_running(paths: RuntimePaths) -> PreflightError:
    state = read_state(paths)
    if state is None:
        return PreflightError(f"another service is just starting or ending in {paths.directory}")
    slices = ", ".join(f"{kind}={count}" for kind, count in state.slices.items())
    return PreflightError(
        f"a service of yours already runs: process {state.supervisor.pid} with {slices}, "
        f"since {state.since}, in {paths.directory}",
        hint="use it, end it first, or set SPS_RUNTIME_DIR for a second one",
    )


def _clean_up(paths: RuntimePaths) -> None:
    """Takes down what a killed supervisor left: we hold the lock, so it is dead."""
    state = read_state(paths)
    stale = [child for child in state.children if _kill(child)] if state else []
    for child in stale:
        with contextlib.suppress(psutil.Error):
            psutil.Process(child.pid).wait(_GONE_S)
    _remove(paths.leftovers())


def _kill(child: Identity) -> bool:
    if not signal_process(child, signal.SIGKILL):
        return False
    glog("W", f"killed process {child.pid}, left behind by a service that was killed")
    return True


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
