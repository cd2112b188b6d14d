"""Logs of the embedded service: files, each written by one process."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from shared_pathways_service.cli.lookups.embedded_status import read_status
from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import tail_of
from shared_pathways_service.runtime.embedded.state_file import ServiceState, read_state
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.runtime.settings import Settings

__all__ = ["Component", "LogFile", "find_logs", "read_logs"]

Component = Literal["proxy", "rm", "worker"]

#: Seconds between two looks at files that did not grow: no system here tells of all that do.
_LOOK_S = 0.2
_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogFile:
    """A log.

    Attributes:
      source: Whose it is, where there may be others; else empty.
      writer: When it has ended, nothing more comes; None: it has.
    """

    path: Path
    source: str = ""
    writer: Identity | None = None


def find_logs(settings: Settings, name: str, component: Component) -> list[LogFile]:
    """Finds the logs of this user's service, or of the one that ran last.

    Args:
      settings: Where its files are.
      name: A connection; empty: none in particular, where that will do.
      component: Whose logs. Of a connection's workers, those that it holds now.

    Raises:
      ServiceNotFound: There are none.
    """
    paths = RuntimePaths(settings.runtime_dir)
    state = read_state(paths) if paths.state.exists() else None
    if state is not None and not state.supervisor.is_alive():
        state = None
    if component == "proxy":
        return [_log_of_proxy(settings, state, name)]
    if state is None:
        raise ServiceNotFound(
            f"no service of yours runs in {settings.runtime_dir}",
            hint=f"logs of those that ran are in {settings.state_dir / 'logs'}",
        )
    directory = Path(state.log_dir)
    if component == "rm":
        return [LogFile(path=directory / "rm.log", writer=state.supervisor)]
    slices = {item["id"] for item in read_status(settings, name)["slices"]} if name else None
    found = [
        LogFile(path=path, source=path.stem, writer=state.supervisor)
        for path in sorted(directory.glob("slice-*.log"))
        # (A worker's name is its slice's and its place in it.)
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
            lives = state is not None and Path(state.log_dir) == directory
            return LogFile(path=path, writer=_process_of(settings, name) if lives else None)
    raise ServiceNotFound(
        f"there is no log of a connection {name}",
        hint=f"those that there are, are in {logs}; --cluster or --context looks elsewhere",
    )


def _process_of(settings: Settings, name: str) -> Identity | None:
    """Returns a proxy's process; None when it has ended."""
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
      logs: At least one.
      lines: How many of each one's last lines.
      show: Takes whose line it is, and the line.
      follow: Whether to go on until all who write them have ended.
    """
    with contextlib.ExitStack() as stack:
        readers = [_Reader(log, lines, stack) for log in logs]
        for reader in readers:
            for line in reader.last_lines:
                show(reader.log.source, line)
        while follow:
            # Before the files: what is written until the end is read after it.
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
                time.sleep(_LOOK_S)


class _Reader:
    """One log, read on from where its last lines ended."""

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
        # A log that grew too long is emptied in place.
        if self._file.tell() > self.log.path.stat().st_size:
            self._file.seek(0)
        *whole, self._rest = (self._rest + self._file.read(_CHUNK)).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    @property
    def unfinished_line(self) -> str:
        """What came after the last end of a line."""
        return self._rest.decode(errors="replace")
