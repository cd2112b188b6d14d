"""Rounds: each kills or stops something of one of the program's slices, and judges what follows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.deadlines import wait_until
from harness.own_service import own_directories
from harness.programs import Program, program, service, status
from stress.executor_kills.client import CLIENT

__all__ = ["AT", "VICTIMS", "Round", "Rounds", "running"]

#: What dies or hangs, each as often as it is here: those that hang take half a minute.
VICTIMS = (
    *("executor", "worker", "host") * 3,
    "stopped executor",
    "stopped worker",
)
#: What the program does at that moment.
AT = ("compute", "compile", "upload", "copy")
_KIND = "tpuv6e:2x4"
#: The most seconds from the work's first result to the kill.
_AFTER_S = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """What was done, and what came of it; seconds are since the kill.

    Attributes:
      unplaced_s: Until the slice was taken from the tenant.
      placed_s: Until it had another one.
      step_s: Until the first step on that.
      both_s: Until the first step over both slices, after that.
      refilled_s: Until all slices of the service were ready.
      same_slice: Whether it is the one that was lost.
    """

    victim: str
    at: str
    index: int
    host: int
    unplaced_s: float
    placed_s: float
    step_s: float
    both_s: float
    refilled_s: float
    same_slice: bool
    reason: str


class Rounds:
    """A service with a client, and the rounds so far.

    Attributes:
      done: The rounds.
      faults: What went wrong, in words.
    """

    def __init__(self, client: Program, seed: int) -> None:
        self._client = client
        self._draw = random.Random(seed)
        self.done: list[Round] = []
        self.faults: list[str] = []

    def run(self, victim: str = "", at: str = "") -> Round:
        """Plays a round; what is not given is drawn.

        Raises:
          AssertionError: The program did not go on, or the service was not whole again.
        """
        draw = self._draw
        victim, at = victim or draw.choice(VICTIMS), at or draw.choice(AT)
        index, host = draw.randrange(2), draw.randrange(2)
        self._client.tell(json.dumps({"at": at, "lost": index}))
        working = self._client.expect("working")
        held = next(s for s in status()["slices"] if s["virtual_index"] == index)["id"]
        executor = next(
            e["pid"] for e in status()["executors"] if (e["slice"], e["host"]) == (held, host)
        )
        worker = psutil.Process(executor).ppid()
        time.sleep(draw.uniform(0.0, _AFTER_S))
        killed_at = time.monotonic()
        _strike(victim, executor, worker)
        back = self._client.expect("back", 300)
        if victim == "stopped worker":
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        wait_until("all slices to be ready", _is_whole, 300)
        found = Round(
            victim=victim,
            at=at,
            index=index,
            host=host,
            unplaced_s=back["lost_at"] - killed_at,
            placed_s=back["placed_at"] - killed_at,
            step_s=back["first_step_at"] - killed_at,
            both_s=back["both_at"] - killed_at,
            refilled_s=time.monotonic() - killed_at,
            same_slice=back["slice_id"] == held,
            reason=back["reason"],
        )
        self._judge(found, back, working["failed"])
        gone = wait_until("what was killed to be gone", lambda: not psutil.pid_exists(executor))
        assert gone
        self.done.append(found)
        return found

    def _judge(self, found: Round, back: dict[str, Any], failed: Sequence[str]) -> None:
        wrong = [f"failed before the kill: {error}" for error in failed]
        if back["index"] != found.index:
            wrong.append(f"virtual slice {back['index']} was placed")
        if not back["kept"]:
            wrong.append("an array of the other slice has changed")
        if back["is_stuck"]:
            wrong.append("its work neither ended nor failed")
        wrong += [
            f"{name} array: {back[name] or 'no error'}"
            for name in ("gone", "spanning")
            if "DATA_LOSS" not in back[name]
        ]
        wrong += [f"its work: {error}" for error in back["failed"] if "DATA_LOSS" not in error]
        if found.same_slice:
            wrong.append("the slice that failed was placed again, although a spare was free")
        which = f"round {len(self.done)}, {found.victim} during {found.at}"
        self.faults += [f"{which}: {one}" for one in wrong]


def _strike(victim: str, executor: int, worker: int) -> None:
    if victim == "stopped executor":
        os.kill(executor, signal.SIGSTOP)
    elif victim == "stopped worker":
        os.kill(worker, signal.SIGSTOP)
    if victim in ("host", "worker"):
        os.kill(worker, signal.SIGKILL)
    if victim in ("host", "executor"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(executor, signal.SIGKILL)


def _is_whole() -> bool:
    slices = status()["slices"]
    return len(slices) == 3 and all(one["state"] == "ready" for one in slices)


@contextlib.contextmanager
def running(seed: int, faults: list[str]) -> Iterator[Rounds]:
    """Runs a service and its client; adds what is left at their end to the faults."""
    with own_directories() as scratch:
        with service(f"{_KIND}=2", spares=1, arguments=("--engine", "distributed")):
            with program(CLIENT) as client:
                client.expect("connected")
                rounds = Rounds(client, seed)
                yield rounds
                client.tell("leave")
                assert client.wait() == 0
            wait_until("all executors to end", lambda: not status()["executors"])
        faults += _left(scratch)


def _left(scratch: Path) -> list[str]:
    """Returns what has outlived a service: processes of its directories, and sockets."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            of = process.environ().get("SPS_RUNTIME_DIR", "")
            if of.startswith(str(scratch)) and process.pid != os.getpid():
                found.append(f"left: process {process.pid} {' '.join(process.cmdline()[:4])}")
    found += [f"left: socket {path.name}" for path in scratch.rglob("*") if path.is_socket()]
    return found


def play(rounds: Rounds, count: int, until: float, show: Callable[[Round], None]) -> None:
    """Plays rounds until there are enough, the time is over, or one cannot go on."""
    while len(rounds.done) < count and time.monotonic() < until:
        try:
            show(rounds.run())
        except AssertionError as error:
            rounds.faults.append(f"round {len(rounds.done)}: {error}")
            raise
