"""Finds and reads the log files of the embedded service."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady
from shared_pathways_service.operations.service_readers.base import Component
from shared_pathways_service.operations.service_readers.embedded.embedded_status import read_status
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import tail_of
from shared_pathways_service.runtime.embedded.state_file import ServiceState, read_state
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.runtime.settings import Settings

__all__ = ["LogFile", "find_logs", "read_logs"]

#: Seconds between two polls of files that did not grow; change notification is not portable.
_POLL_S = 0.2
_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogFile:
    """A log file.

    Attributes:
      source: Name of the process, if there may be several logs; otherwise empty.
      writer: The process that writes the log; None: it has ended.
    """

    path: Path
    source: str = ""
    writer: Identity | None = None


def find_logs(settings: Settings, name: str, component: Component) -> list[LogFile]:
    """Finds the logs of this user's service, or of the one that ran last.

    Args:
      settings: The directories of the service.
      name: A connection; may be empty, except for a proxy's log.
      component: The component. With a connection, only workers of its slices.

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
    slices = {item["id"] for item in read_status(settings, name)["slices"]} if name else None
    found = [
        LogFile(path=path, source=path.stem, writer=state.supervisor)
        for path in sorted(directory.glob("slice-*.log"))
        # (A worker's name is its slice's name and its index.)
        if slices is None or path.stem.rpartition("-")[0] in slices
    ]
    if not found:
        raise ServiceNotFound(f"{name or 'the service'} has no workers")
    return found


def _log_of_proxy(settings: Settings, state: ServiceState | None, name: str) -> LogFile:
    logs = settings.state_dir / "logs"
    starts = sorted(logs.glob("service-*"), key=_age) if logs.is_dir() else []
    for directory in starts:
        path = directory / f"proxy-{name}.log"
        if path.exists():
            is_live = state is not None and Path(state.log_dir) == directory
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
    return -directory.stat().st_mtime


# ---- reading


def read_logs(
    logs: Sequence[LogFile], lines: int, show: Callable[[str, str], None], *, follow: bool
) -> None:
    """Shows logs.

    Args:
      logs: At least one log.
      lines: The number of last lines to show of each log.
      show: Called with the source of a line, and the line.
      follow: Whether to continue until all writers have ended.
    """
    with contextlib.ExitStack() as stack:
        readers = [_Reader(log, lines, stack) for log in logs]
        for reader in readers:
            for line in reader.last_lines:
                show(reader.log.source, line)
        while follow:
            # Checked before reading, so that the last lines are read after the end.
            ended = not any(log.writer is not None and log.writer.is_alive() for log in logs)
            shown = False
            for reader in readers:
                for line in reader.new_lines():
                    show(reader.log.source, line)
                    shown = True
            if ended and not shown:
                for reader in readers:
                    if line := reader.unfinished_line:
                        show(reader.log.source, line)
                return
            if not shown:
                time.sleep(_POLL_S)


class _Reader:
    """Reads one log on from its last lines."""

    def __init__(self, log: LogFile, lines: int, stack: contextlib.ExitStack) -> None:
        self.log = log
        self._file: BinaryIO | None = None
        self._rest = b""
        with contextlib.suppress(FileNotFoundError):
            self._file = stack.enter_context(log.path.open("rb"))
            self._file.seek(0, 2)
        self.last_lines = tail_of(log.path, lines) if lines else []

    def new_lines(self) -> list[str]:
        if self._file is None:
            return []
        # A log that grew too long is truncated in place.
        if self._file.tell() > self.log.path.stat().st_size:
            self._file.seek(0)
        *whole, self._rest = (self._rest + self._file.read(_CHUNK)).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    @property
    def unfinished_line(self) -> str:
        """The text after the last newline."""
        return self._rest.decode(errors="replace")
