"""Far ends as processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from harness.processes import DEADLINE_S, REPOSITORY

__all__ = ["COMMAND", "FarProgram", "far_program"]

COMMAND = (sys.executable, "-P", "-m", "shared_pathways_service.tunnel.link")


class FarProgram:
    """A far end's process, whose output is recorded."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        assert process.stderr
        self.process = process
        self.reports: list[dict[str, Any]] = []
        self.log = b""
        self._news = threading.Condition()
        self._has_ended = False
        self._readers = [
            threading.Thread(target=self._read_reports, args=(process.stdout,)),
            threading.Thread(target=self._read_log, args=(process.stderr,)),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def port(self) -> int:
        """Waits until it listens."""
        return int(self.report(lambda _: True)["port"])

    def report(self, wanted: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
        """Waits for a report; returns the first such one."""

        def found() -> list[dict[str, Any]]:
            return [report for report in self.reports if wanted(report)]

        with self._news:
            self._news.wait_for(lambda: bool(found()) or self._has_ended, DEADLINE_S)
            assert found(), f"not in {self.reports}: {self.log.decode()}"
            return found()[0]

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        code = self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    def _read_reports(self, stream: IO[bytes]) -> None:
        for line in stream:
            with self._news:
                self.reports.append(json.loads(line)["link"])
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _read_log(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.log += line


@contextlib.contextmanager
def far_program(
    directory: Path,
    target: str,
    *flags: str,
    token: bytes = b"a token of the tenant",
    command: tuple[str, ...] = COMMAND,
    cwd: Path = REPOSITORY,
    port: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Iterator[FarProgram]:
    """Starts a far end before `target`; it ends with the block."""
    token_file = directory / "token"
    token_file.write_bytes(token + b"\n")
    arguments = [
        f"--port={port}",
        "--bind_address=127.0.0.1",
        f"--target={target}",
        f"--token_file={token_file}",
        *flags,
    ]
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
    ) as process:
        program = FarProgram(process)
        try:
            yield program
        finally:
            process.kill()
            program.wait()
