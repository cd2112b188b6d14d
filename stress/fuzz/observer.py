"""Observes a proxy that does not answer: its threads, and which clients it still answers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import psutil

from harness.deadlines import deadline
from harness.proxy.raw import Failed, RawClient
from stress.fuzz.conversation import FuzzError
from stress.fuzz.witness import counters_of

__all__ = ["DEBUGGERS", "Observer"]

#: Commands that show stacks of threads; those that are not installed are left out. Three, as py-spy
#: fails to stop a process that is stopped already, and tells nothing of XLA's own threads.
DEBUGGERS: dict[str, Sequence[str]] = {
    "py-spy --native": ("py-spy", "dump", "--native", "--pid"),
    "py-spy --nonblocking": ("py-spy", "dump", "--nonblocking", "--pid"),
    "gdb": ("gdb", "-nx", "-batch", "-ex", "thread apply all bt 16", "-p"),
}
#: Looks that are kept of one proxy: hypothesis tries again whatever failed.
_LOOKS = 2
#: Between two looks at the time that threads have used.
_BETWEEN_S = 0.5
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_FOUR_ONES = """
module @four_ones {
  func.func public @main() -> tensor<4xf32> {
    %c = stablehlo.constant dense<1.0> : tensor<4xf32>
    return %c : tensor<4xf32>
  }
}
"""


@dataclasses.dataclass
class Observer:
    """Looks at a proxy that `stress.fuzz.proxy` runs.

    Attributes:
      pid: Its process.
      address: Where it serves.
      stacks: Its file of stacks.
      devices: One of each slice: whether a new session can compile and run there.
      patience_s: How long it may take for each answer.
      debuggers: Commands by their names in the result, without the process.
      looks: The observations, in the form of JSON.
    """

    pid: int
    address: str
    stacks: Path
    devices: Sequence[int] = (0, 7)
    patience_s: float = deadline(30.0)
    debuggers: dict[str, Sequence[str]] = dataclasses.field(default_factory=lambda: DEBUGGERS)
    looks: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Observes the proxy if the block raises an error, before anything is closed."""
        try:
            yield
        except (FuzzError, TimeoutError):
            self.look()
            raise

    def look(self) -> None:
        """Adds to `looks`, unless there are enough, or the process is gone."""
        with self._lock, contextlib.suppress(psutil.NoSuchProcess):
            gone = psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
            if not gone and len(self.looks) < _LOOKS:
                self.looks.append(self._look())

    def _look(self) -> dict[str, Any]:
        before = _threads(self.pid)
        python = self._python_stacks()
        time.sleep(_BETWEEN_S)
        after = _threads(self.pid)
        for thread, usage in after.items():
            began = before.get(thread, {}).get("cpu_s", 0.0)
            usage["cpu_s_between"] = round(usage["cpu_s"] - began, 2)
        # Before the debuggers, which suspend the process.
        answers = self._answers()
        stacks = {
            name: self._output([*command, str(self.pid)])
            for name, command in self.debuggers.items()
            if shutil.which(command[0])
        }
        return {"answers": answers, "threads": after, "python": python, **stacks}

    def _python_stacks(self) -> list[str]:
        begin = self.stacks.stat().st_size
        os.kill(self.pid, signal.SIGUSR1)
        deadline, size = time.monotonic() + self.patience_s, begin
        # Until it has begun, and adds no more.
        while time.monotonic() < deadline:
            time.sleep(0.1)
            last, size = size, self.stacks.stat().st_size
            if size == last > begin:
                break
        data = self.stacks.read_bytes()[begin:]
        return data.decode(errors="replace").splitlines() or [f"none in {self.patience_s:g} s"]

    def _output(self, command: Sequence[str]) -> list[str]:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=4 * self.patience_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [f"none in {4 * self.patience_s:g} s"]
        return done.stdout.decode(errors="replace").splitlines()

    # ---- whom it answers

    def _answers(self) -> dict[str, str]:
        with futures.ThreadPoolExecutor() as pool:
            counters = pool.submit(
                self._ask, lambda left_s: counters_of(self.address, deadline_s=left_s)
            )
            sessions = [pool.submit(self._ask_on, device) for device in self.devices]
        answers = {"counters": counters.result()}
        for session in sessions:
            answers |= session.result()
        return answers

    def _ask_on(self, device: int) -> dict[str, str]:
        """Asks for a session, a program and a result on one device, until one does not come."""
        client = RawClient(self.address, send_init=False)
        handles: list[int] = []

        def init(left_s: float) -> None:
            client.begin("init").result(left_s)

        def compile_(left_s: float) -> None:
            answer = client.begin_compile(_FOUR_ONES, [device]).result(left_s)
            handles.append(answer.loaded_executable_handle)

        def run(left_s: float) -> None:
            client.begin(
                "loaded_executable_execute",
                loaded_executable_handle=handles[0],
                result_array_handle=[1],
            )
            client.begin_ready(1).result(left_s)

        answers: dict[str, str] = {}
        try:
            for what, question in {"session": init, "compile": compile_, "run": run}.items():
                answer = self._ask(question)
                answers[f"{what} on device {device}"] = answer
                if not answer.startswith("after "):
                    break
        finally:
            client.close()
        return answers

    def _ask(self, question: Callable[[float], Any]) -> str:
        begin = time.monotonic()
        try:
            question(self.patience_s)
        except (Failed, TimeoutError, ConnectionError, grpc.RpcError) as error:
            return f"not in {time.monotonic() - begin:.1f} s: {error!r}"
        return f"after {time.monotonic() - begin:.2f} s"


def _threads(pid: int) -> dict[str, dict[str, Any]]:
    """Returns the system's data of a process's threads, by their id."""
    found = {}
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # (The name, which is in brackets, may have any characters.)
            stat = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
            found[path.name] = {
                "name": (path / "comm").read_text(errors="replace").strip(),
                "state": stat[0],
                "cpu_s": round((int(stat[11]) + int(stat[12])) * _TICK_S, 2),
                "wchan": _read(path / "wchan"),
                "syscall": _read(path / "syscall"),
            }
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except PermissionError:
        return "not told"
