"""Runs pytest as a process, with the recorder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from harness.suite.phases import PlannedTest
from harness.suite.recorder import PLAN, RECORD
from harness.suite.records import Record, read_record

__all__ = ["collect", "interrupt_all", "run_command", "run_pytest", "running"]

#: For what a command has printed last.
_OUTPUT_S = 10.0
#: What was started and has not ended.
_running: list[subprocess.Popen[bytes]] = []


def run_pytest(
    arguments: Sequence[str],
    record: Path,
    *,
    output: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, Record]:
    """Runs pytest to its end; returns its exit status and what it reported.

    Args:
      arguments: Its arguments.
      record: The file of the recorder, which must not exist.
      output: Where its output goes; None: to this process's.
      env: Variables beside this process's.
    """
    status = _run(arguments, output, {**(env or {}), RECORD: str(record)})
    return status, read_record(record)


def collect(arguments: Sequence[str], directory: Path) -> dict[str, PlannedTest] | None:
    """Collects tests; None: a module cannot be collected, and pytest has said why."""
    plan, output = directory / "plan.json", directory / "collection.log"
    status = _run([*arguments, "--collect-only", "--quiet"], output, {PLAN: str(plan)})
    if status != 0 or not plan.exists():
        sys.stdout.write(output.read_text())
        return None
    return {test: PlannedTest(**planned) for test, planned in json.loads(plan.read_text()).items()}


def _run(arguments: Sequence[str], output: Path | None, env: Mapping[str, str]) -> int:
    with contextlib.ExitStack() as stack:
        file = None if output is None else stack.enter_context(output.open("w"))
        sys.stdout.flush()
        return _wait_for_end(
            _start(
                [sys.executable, "-m", "pytest", *arguments],
                env={**os.environ, **env},
                stdout=file,
            )
        )


def run_command(command: Sequence[str], output: Path) -> int:
    """Runs a command to its end; returns its status.

    Args:
      command: Its words.
      output: Gets what it prints, as this process's output does.
    """
    # (`tee` ignores an interrupt, so that it gets what the command says of it.)
    writer = subprocess.Popen(["tee", "-i", output], stdin=subprocess.PIPE)
    assert writer.stdin is not None
    process = _start(command, stdout=writer.stdin)
    writer.stdin.close()
    try:
        return _wait_for_end(process)
    finally:
        try:
            writer.wait(_OUTPUT_S)
        except subprocess.TimeoutExpired:
            # Something that the command left behind holds its output open.
            writer.kill()
            writer.wait()


@contextlib.contextmanager
def running(command: Sequence[str], output: Path) -> Iterator[None]:
    """Runs a command beside the block, whose end waits for it; it may fail, as its log says.

    Args:
      command: Its words; without any, nothing runs.
      output: Gets what it prints.
    """
    if not command:
        yield
        return
    with output.open("w") as log:
        process = _start(command, stdout=log)
    try:
        yield
    finally:
        if process.poll() is None:
            print(f"== waiting for {' '.join(command)}: {output}", flush=True)
        _wait_for_end(process)


def _start(
    command: Sequence[str], *, stdout: IO[Any] | None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    errors = None if stdout is None else subprocess.STDOUT
    process = subprocess.Popen(command, env=env, stdout=stdout, stderr=errors)
    _running.append(process)
    return process


def interrupt_all() -> None:
    """Interrupts all that runs, as Ctrl-C does; who started it goes on to wait for its end."""
    for process in _running:
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(process.pid)
            for one in [*started.children(recursive=True), started]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGINT)


def _wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Waits for a process, which cleans up before an interrupt ends this one; returns its status.

    Raises:
      KeyboardInterrupt: There was one, which the process has received as well.
    """
    is_interrupted = False
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            is_interrupted = True
            continue
        _running.remove(process)
        if is_interrupted:
            raise KeyboardInterrupt
        return status
