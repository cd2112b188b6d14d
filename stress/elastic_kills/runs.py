"""Runs of the trainer, what is known of each of its processes, and an undisturbed run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import psutil

from harness.deadlines import deadline
from harness.own_service import ROOT
from shared_pathways_service.elastic.checkpoints.files import CheckpointInfo, list_checkpoints
from shared_pathways_service.elastic.run_ledger import LEDGER_NAME, read_ledger
from shared_pathways_service.events import Event

#: Seconds that anything may take, and between two looks at a ledger.
LIMIT_S = deadline(300.0)
GLANCE_S = 0.005
#: The number of characters of output that an error shows.
_TAIL = 4000
#: Borne by a trainer in its environment, and so by whatever it starts.
MARK = "SPS_TRAINER"
#: Of `example_training.dataset()`.
EXAMPLES = 96
KEPT = 3

#: ``save``: while one is saved; ``anywhere``: uniform over a whole run's time; ``restarted``: the
#: same, from when it has restored on.
Aim = Literal["save", "anywhere", "restarted"]
AIMS: tuple[Aim, ...] = ("save", "anywhere", "restarted", "anywhere")


class KillError(AssertionError):
    """A restart went on with the wrong step, or something was lost, repeated or left."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The number of steps, the period of checkpoints, and the least duration of a step."""

    steps: int
    period: int = 3
    pace_s: float = 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill.

    Attributes:
      run: Of which run, from 0.
      aim: The kind of moment that was drawn.
      after_s: Seconds after the start of the process.
      phase: The phase of the process: ``startup`` (until the manager runs), ``restore``, ``save``
        (from the step that it follows until it is committed), ``between`` saves, ``end``.
      resumed_from: The step that it had gone on with itself; None: it did not come so far.
      step: The last that it had completed.
      committed: Steps of the checkpoints that were committed after its death.
      cut_short: Steps of the checkpoints that were not.
    """

    run: int
    aim: Aim
    after_s: float
    phase: str
    resumed_from: int | None
    step: int | None
    committed: list[int]
    cut_short: list[int]

    @property
    def newest(self) -> int:
        """The step that the next process must restore; 0: none."""
        return max(self.committed, default=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """An undisturbed run.

    Attributes:
      notes: Its steps.
      end: Digests of its parameters.
      seconds: From the start of the process to its end.
      trained_s: Those of it from when training began.
      save_s: Median duration of a save.
    """

    notes: Mapping[int, Mapping[str, Any]]
    end: Mapping[str, str]
    seconds: float
    trained_s: float
    save_s: float


class Run:
    """One run in its own directory, by as many processes as needed."""

    def __init__(self, root: Path, training: Training) -> None:
        self.root = root
        self.directory = root / "run"
        self.training = training
        self._mark = uuid.uuid4().hex
        self._temporary = root / "temporary"
        self._temporary.mkdir(parents=True)

    @contextlib.contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a process that trains for the length of the block."""
        what = self.training
        command = [sys.executable, "-m", "stress.elastic_kills.trainer"]
        command += [str(self.directory), str(self.root / "notes"), f"--steps={what.steps}"]
        command += [f"--period={what.period}", f"--pace={what.pace_s}"]
        environment = {**os.environ, MARK: self._mark, "TMPDIR": str(self._temporary)}
        with (self.root / "errors").open("ab") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=errors, env=environment, cwd=ROOT
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def finish(self, process: subprocess.Popen[bytes], limit_s: float = LIMIT_S) -> None:
        """Waits for a process that ends by itself.

        Raises:
          KillError: It failed.
          subprocess.TimeoutExpired: It did not end.
        """
        if process.wait(limit_s):
            raise KillError(f"the trainer ended with {process.returncode}")

    def events(self, pid: int | None = None) -> list[Event]:
        """Returns the ledger's events, of all processes or from one's beginning on."""
        if not (self.directory / LEDGER_NAME).exists():
            return []
        events = list(read_ledger(self.directory))
        if pid is None:
            return events
        began = [
            number
            for number, event in enumerate(events)
            if event.kind == "elastic.run.started" and event.data["pid"] == pid
        ]
        return events[began[-1] :] if began else []

    def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        """Returns the checkpoints there are, each file of which was read."""
        return list_checkpoints(self.directory / "checkpoints", checksums=True)

    def notes(self) -> list[dict[str, Any]]:
        """Returns the records of the trainers."""
        path = self.root / "notes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tail(self) -> str:
        """Returns the end of the ledger, and of the standard error."""
        texts = [
            path.read_text(errors="replace")[-_TAIL:]
            for path in (self.directory / LEDGER_NAME, self.root / "errors")
            if path.exists()
        ]
        return "\n".join(texts)

    def left(self) -> list[str]:
        """Returns leftovers of the training processes: processes and files."""
        found = [f"file {path.name}" for path in self._temporary.iterdir()]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.pid != os.getpid() and process.environ().get(MARK) == self._mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"process {process.pid}")
        return found


def undisturbed(root: Path, training: Training) -> Reference:
    """Runs training without kills."""
    run = Run(root, training)
    began = time.monotonic()
    with run.process() as process:
        run.finish(process)
    seconds = time.monotonic() - began
    *steps, end = run.notes()
    events = run.events()
    saves = [e.duration_s for e in events if e.kind == "checkpoint.saved" and e.duration_s]
    [restored] = [event for event in events if event.kind == "elastic.restored"]
    return Reference(
        notes={note["step"]: note for note in steps},
        end=end["end"],
        seconds=seconds,
        trained_s=events[-1].monotonic - restored.monotonic,
        save_s=statistics.median(saves),
    )
