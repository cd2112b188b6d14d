"""A real service and real client programs, each a process, driven step by step."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.deadlines import deadline
from harness.processes import REPOSITORY
from shared_pathways_service.operations.service_readers.embedded.embedded_status import read_status
from shared_pathways_service.runtime.settings import Settings

#: Generous, for a loaded machine of two cores: tests assert results, never speed.
DEADLINE_S = deadline(180.0)

PRELUDE = """
import sys, json, os, threading, time
from shared_pathways_service import errors, isc_pathways
def say(word, **data):
    sys.stdout.write(json.dumps({"say": word, **data}) + "\\n"); sys.stdout.flush()
def wait_for(word):
    line = sys.stdin.readline().strip()
    assert line == word, (line, word)
def wait_for_signal():
    # Not one long sleep: Python misses a signal that arrives just before the system call.
    for _ in range(6000):
        time.sleep(0.1)
"""


class TookTooLongError(AssertionError):
    """A program did not say what was expected of it, or did not end."""


class Program:
    """A Python program as a process that exchanges lines: `say(word, **data)`, `wait_for(word)`."""

    def __init__(
        self, source: str, *, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        code = PRELUDE + textwrap.dedent(source)
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-X", "faulthandler", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=REPOSITORY,
        )
        self.pid = self._process.pid
        self.stderr: list[str] = []
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read_stdout),
            threading.Thread(target=self._read_stderr),
        ]
        for reader in self._readers:
            reader.start()

    def _read_stdout(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                data = json.loads(line)
                if isinstance(data, dict) and "say" in data:
                    self._said.put(data)
        self._said.put(None)

    def _read_stderr(self) -> None:
        assert self._process.stderr
        self.stderr.extend(self._process.stderr)

    def expect(self, word: str, timeout: float = DEADLINE_S) -> dict[str, Any]:
        """Waits for the program's next message, which must have this word; returns its data.

        Raises:
            TookTooLongError: There was no message.
            AssertionError: It was another one, or the program has ended.
        """
        data = self._next(repr(word), timeout)
        assert data["say"] == word, f"said {data}, not {word!r}; {self._tail()}"
        return data

    def expect_any(self, timeout: float = DEADLINE_S) -> dict[str, Any]:
        """Waits for the program's next message; raises the errors of `expect`."""
        return self._next("anything", timeout)

    def _next(self, what: str, timeout: float) -> dict[str, Any]:
        try:
            data = self._said.get(timeout=timeout)
        except queue.Empty:
            raise TookTooLongError(f"waited {timeout} s for {what}; {self._tail()}") from None
        assert data is not None, f"ended before it said {what}; {self._tail()}"
        return data

    @property
    def has_said(self) -> bool:
        """Whether `expect` would return, or raise, at once."""
        return not self._said.empty()

    def tell(self, word: str) -> None:
        """Lets the program continue after its `wait_for(word)`."""
        assert self._process.stdin
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def wait(self, timeout: float = DEADLINE_S) -> int:
        """Returns the exit code.

        Raises:
            TookTooLongError: The program did not end; the text shows where its threads were.
        """
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(deadline(10.0))
            self.close()
            raise TookTooLongError(f"did not end in {timeout} s; {self._tail()}") from None
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    def close(self) -> None:
        """Ends the program if it still runs, and its threads and pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is self._process.stdin and stream:
                with contextlib.suppress(OSError):
                    stream.close()
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream:
                stream.close()

    def _tail(self) -> str:
        return "its standard error:\n" + "".join(self.stderr[-80:])


@contextlib.contextmanager
def program(
    source: str, *, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[Program]:
    """Runs a `Program` for the length of the block, with a command's prefix such as `nsenter`'s."""
    running = Program(source, env=env, prefix=prefix)
    try:
        yield running
    finally:
        running.close()


@contextlib.contextmanager
def sps_running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a long `sps` command until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "shared_pathways_service.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def python(*arguments: str | Path, timeout: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments to its end, in the repository."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=REPOSITORY,
    )


def sps(
    *arguments: str, check: bool = True, timeout: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Runs an `sps` command to its end."""
    done = python("-m", "shared_pathways_service.cli", *arguments, timeout=timeout)
    assert not check or done.returncode == 0, done
    return done


def sps_json(*arguments: str) -> Any:
    """Returns what an `sps` command prints with `--json`."""
    return json.loads(sps(*arguments, "--json").stdout)


def sps_failing(*arguments: str) -> tuple[int, str]:
    """Runs an `sps` command that may fail; returns its exit code and its standard error."""
    done = sps(*arguments, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def status(wait_s: float = 0.0) -> dict[str, Any]:
    """Returns the service's part of what `sps status --json` prints, read in this process.

    Args:
      wait_s: Seconds to wait for the service and all its slices.
    """
    try:
        return read_status(Settings.load(), wait_s=wait_s)
    finally:
        gc.collect()  # gRPC's poller thread ends with the last of its objects


def pids(role: str, **fields: Any) -> list[int]:
    """Process ids of the service's processes of a role, whose entries have these fields."""
    return [
        entry["pid"]
        for entry in status()["processes"]
        if entry["role"] == role and all(entry.get(k) == v for k, v in fields.items())
    ]


#: Of each server's log, where a test fails.
_NOTED_LINES = 25


@contextlib.contextmanager
def noting_logs() -> Iterator[None]:
    """Adds the ends of all servers' logs to an error of the block."""
    try:
        yield
    except Exception as error:
        for log in sorted(Path(os.environ["SPS_STATE_DIR"]).parent.rglob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-_NOTED_LINES:]
            error.add_note("\n".join([f"== {log.name}", *lines]))
        raise


@contextlib.contextmanager
def service(
    slices: str = "tpuv6e:2x2=2", spares: int = 1, arguments: Sequence[str] = ()
) -> Iterator[int]:
    """Runs `sps serve` for the length of the block, all slices ready; gives its process id."""
    command = [sys.executable, "-m", "shared_pathways_service.cli", "serve"]
    command += ["--slices", slices, "--spares", str(spares), *arguments]
    log = Path(os.environ["SPS_STATE_DIR"]).with_suffix(".serve.log")
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=REPOSITORY)
    try:
        with noting_logs():
            sps("status", "--wait", str(DEADLINE_S))
            yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"sps serve did not end:\n{log.read_text()}") from None
