"""Finds the log files of the embedded service."""

from __future__ import annotations

import contextlib
from pathlib import Path

from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady
from shared_pathways_service.operations.service_readers.base import Component
from shared_pathways_service.operations.service_readers.embedded.embedded_status import read_status
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_reading import LogFile, Select
from shared_pathways_service.runtime.embedded.state_file import ServiceState, read_state
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.runtime.settings import Settings

__all__ = ["find_logs"]


def find_logs(
    settings: Settings, name: str, component: Component, select: Select | None = None
) -> list[LogFile]:
    """Finds the logs of this user's service, or of the one that ran last.

    Args:
      settings: The directories of the service.
      name: A connection; may be empty, except for logs of a proxy or of executors.
      component: The component. With a connection, only workers of its slices.
      select: Selects the lines of its executors in the logs of all workers, as its slices change.

    Raises:
      ServiceNotFound: There are no such logs.
    """
    paths = RuntimePaths(settings.runtime_dir)
    state = read_state(paths) if paths.state.exists() else None
    if state is not None and not state.supervisor.is_alive():
        state = None
    if component == "proxy":
        return [_log_of_proxy(settings, state, name)]
    if state is None:
        raise ServiceNotFound(
            f"you have no running service in {settings.runtime_dir}",
            hint=f"logs of earlier services are in {settings.state_dir / 'logs'}",
        )
    directory = Path(state.log_dir)
    if component == "rm":
        return [LogFile(path=directory / "rm.log", writer=state.supervisor)]
    is_executor = component == "executor"
    slices = None
    if name and not is_executor:
        slices = {item["id"] for item in read_status(settings, name)["slices"]}
    writer = _process_of(settings, name) if is_executor else state.supervisor
    found = [
        LogFile(path=path, source=path.stem, writer=writer, select=select)
        for path in sorted(directory.glob("slice-*.log"))
        # (A worker's name is its slice's name and its index.)
        if slices is None or path.stem.rpartition("-")[0] in slices
    ]
    if not found:
        raise ServiceNotFound(f"{name or 'the service'} has no workers")
    return found


def _log_of_proxy(settings: Settings, state: ServiceState | None, name: str) -> LogFile:
    logs = settings.state_dir / "logs"
    live = None if state is None else Path(state.log_dir)
    # Those of the running service first: others may be of machines that share the directory.
    starts = sorted(logs.glob("service-*"), key=lambda path: (path != live, _age(path)))
    for directory in starts:
        path = directory / f"proxy-{name}.log"
        if path.exists():
            is_live = directory == live
            return LogFile(path=path, writer=_process_of(settings, name) if is_live else None)
    raise ServiceNotFound(
        f"there is no log of the connection {name}",
        hint=f"the logs of this machine are in {logs}; --cluster or --context selects a cluster",
    )


def _process_of(settings: Settings, name: str) -> Identity | None:
    """Returns a proxy's process; None if it has ended."""
    with contextlib.suppress(ServiceNotFound, ServiceNotReady, ProcessLookupError):
        for process in read_status(settings)["processes"]:
            if process["role"] == "proxy" and process["name"] == name:
                return identity_of(process["pid"])
    return None


def _age(directory: Path) -> float:
    try:
        return -directory.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # a service has just removed it
