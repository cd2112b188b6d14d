"""Kills one trainer after another, and compares what the next one goes on with."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from harness.own_service import ROOT
from shared_pathways_service.elastic.checkpoints.files import CheckpointInfo, list_checkpoints
from shared_pathways_service.elastic.run_ledger import LEDGER_NAME, read_ledger
from shared_pathways_service.events import Event

#: Seconds that anything may take, and between two looks at a ledger.
LIMIT_S = 300.0
GLANCE_S = 0.005
#: Characters that are told of what went wrong.
_TAIL = 4000
#: Borne by a trainer in its environment, and so by whatever it starts.
MARK = "SPS_TRAINER"
#: Of `checks.dataset()`.
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
    """What is trained: so many steps, a checkpoint every so many, a step not before so long."""

    steps: int
    period: int = 3
    pace_s: float = 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill.

    Attributes:
      run: Of which run, from 0.
      aim: What the moment was drawn for.
      after_s: Seconds after the start of the process.
      phase: What the process was at: ``startup`` (until the manager runs), ``restore``, ``save``
        (from the step that it follows until it is committed), ``between`` saves, ``end``.
      resumed_from: The step that it had gone on with itself; None: it did not come so far.
      step: The last that it had completed.
      committed: Steps of what was committed when it was dead.
      cut_short: Steps of what was there and was not.
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
        """What the next process must go on with; 0: with nothing."""
        return max(self.committed, default=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """A run that nobody disturbed.

    Attributes:
      notes: Its steps.
      end: Digests of its parameters.
      seconds: From the start of the process to its end.
      trained_s: Those of it from when training began.
      save_s: What a save takes, as the median.
    """

    notes: Mapping[int, Mapping[str, Any]]
    end: Mapping[str, str]
    seconds: float
    trained_s: float
    save_s: float


class Run:
    """One run in a directory of its own, by as many processes as it takes."""

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
        told = list(read_ledger(self.directory))
        if pid is None:
            return told
        began = [
            number
            for number, event in enumerate(told)
            if event.kind == "elastic.run.started" and event.data["pid"] == pid
        ]
        return told[began[-1] :] if began else []

    def checkpoints(self) -> tuple[CheckpointInfo, ...]:
        """Returns the checkpoints there are, each file of which was read."""
        return list_checkpoints(self.directory / "checkpoints", checksums=True)

    def notes(self) -> list[dict[str, Any]]:
        """Returns what the trainers noted."""
        path = self.root / "notes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tail(self) -> str:
        """Returns the end of the ledger, and of what was written to the standard error."""
        texts = [
            path.read_text(errors="replace")[-_TAIL:]
            for path in (self.directory / LEDGER_NAME, self.root / "errors")
            if path.exists()
        ]
        return "\n".join(texts)

    def left(self) -> list[str]:
        """Returns what is left of the processes that trained: processes, files."""
        found = [f"file {path.name}" for path in self._temporary.iterdir()]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.pid != os.getpid() and process.environ().get(MARK) == self._mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"process {process.pid}")
        return found


def undisturbed(root: Path, training: Training) -> Reference:
    """Runs training that nobody kills."""
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


# ---- killing


def kill_and_restart(
    run: Run, number: int, reference: Reference, aims: Iterator[Aim], draw: random.Random
) -> list[Kill]:
    """Kills the processes of a run, one for each aim, and lets the last one end by itself.

    A run that ends before its process could be killed is over.

    Raises:
      KillError: A process went on with another step than the newest that was committed, or
        something was left of one that was killed.
    """
    kills: list[Kill] = []
    for aim in aims:
        kill = _one_life(run, number, reference, aim, draw)
        if kill is None:
            return kills
        _check_resumed(kill, kills)
        kills.append(kill)
    with run.process() as process:
        run.finish(process)
        events = run.events(process.pid)
    _check_first(_resumed_from(events), kills)
    return kills


def _one_life(
    run: Run, number: int, reference: Reference, aim: Aim, draw: random.Random
) -> Kill | None:
    """Starts a process and kills it; None: it ended before."""
    with run.process() as process:
        began = time.monotonic()
        if aim == "save":
            which, period = draw.randint(1, 3), run.training.period
            _wait(run, process, lambda told: len(_saved_next(told, period)) >= which)
            moment_s = draw.uniform(0.0, reference.save_s)
        elif aim == "restarted":
            _wait(run, process, lambda told: any(e.kind == "elastic.restored" for e in told))
            moment_s = draw.uniform(0.0, reference.trained_s)
        else:
            moment_s = draw.uniform(0.0, reference.seconds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.finish(process, moment_s)
            return None
        process.kill()
        after_s = time.monotonic() - began
        process.wait()
    left = run.left()
    if left:
        raise KillError(f"left of a process that was killed: {', '.join(left)}")
    events = run.events(process.pid)
    there = run.checkpoints()
    damaged = [info for info in there if info.state == "damaged"]
    if damaged:
        raise KillError(f"committed and damaged: {damaged}")
    steps = [event.step for event in events if event.kind == "elastic.step"]
    return Kill(
        run=number,
        aim=aim,
        after_s=after_s,
        phase=phase_of(events, run.training.period),
        resumed_from=_resumed_from(events),
        step=steps[-1] if steps else None,
        committed=[info.step for info in there if info.state == "committed"],
        cut_short=[info.step for info in there if info.state == "uncommitted"],
    )


def _wait(
    run: Run, process: subprocess.Popen[bytes], is_there: Callable[[Sequence[Event]], bool]
) -> None:
    """Waits until a process has told what is waited for, or is over."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and not is_there(run.events(process.pid)):
        if time.monotonic() > deadline:
            raise KillError(f"what is to be killed does not come within {LIMIT_S:g} s")
        time.sleep(GLANCE_S)


def _saved_next(events: Sequence[Event], period: int) -> set[int]:
    """Returns the steps that were completed and that a save follows."""
    steps = {event.step or 0 for event in events if event.kind == "elastic.step"}
    return {step for step in steps if step % period == 0}


def phase_of(events: Sequence[Event], period: int) -> str:
    """Returns what a process was at that told these events last.

    Args:
      events: Of one process.
      period: Steps between two saves.
    """
    kinds = {event.kind for event in events}
    if "elastic.run.started" not in kinds:
        return "startup"
    if "elastic.restored" not in kinds:
        return "restore"
    if "elastic.run.done" in kinds:
        return "end"
    ended = {e.step for e in events if e.kind in {"checkpoint.saved", "checkpoint.failed"}}
    return "save" if _saved_next(events, period) - ended else "between"


def _resumed_from(events: Sequence[Event]) -> int | None:
    restored = [event.step for event in events if event.kind == "elastic.restored"]
    return restored[0] if restored else None


def _check_resumed(kill: Kill, before: Sequence[Kill]) -> None:
    if kill.resumed_from is not None:
        _check_first(kill.resumed_from, before)


def _check_first(resumed_from: int | None, before: Sequence[Kill]) -> None:
    newest = before[-1].newest if before else 0
    if resumed_from != newest:
        raise KillError(f"it went on with step {resumed_from}, and {newest} was the newest saved")


# ---- looking at a run that has ended


def check_run(run: Run, reference: Reference, kills: Sequence[Kill]) -> None:
    """Looks at a run that has ended.

    Raises:
      KillError: It is not what a run that nobody disturbed is, or something is left.
    """
    notes = run.notes()
    noted = [note for note in notes if "step" in note]
    # Each line, also of a step that did not stand: what is done again is done as before.
    wrong = [note for note in noted if note != reference.notes[note["step"]]]
    stood = {note["step"]: note for note in noted}
    if wrong or list(stood) != list(reference.notes):
        raise KillError(f"other steps than without kills: {list(stood)}, {wrong[:3]}")
    used = [number for step in sorted(stood) for number in stood[step]["examples"]]
    for begin in range(0, len(used), EXAMPLES):
        epoch = used[begin : begin + EXAMPLES]
        if len(set(epoch)) != len(epoch) or not set(epoch) <= set(range(EXAMPLES)):
            raise KillError(f"an example was used twice, in the epoch of example {begin}")
    # More than one, where a process was killed that had noted it already.
    ends = [note["end"] for note in notes if "end" in note]
    if not ends or any(end != reference.end for end in ends):
        raise KillError(f"other parameters than without kills: {ends}")
    left = run.left() + _odd_files(run, kills)
    if left:
        raise KillError(f"left behind: {', '.join(left)}")


def _odd_files(run: Run, kills: Sequence[Kill]) -> list[str]:
    """Returns files that nobody needs, and checkpoints in quarantine that no kill cut short."""
    cut_short = {step for kill in kills for step in kill.cut_short}
    there = run.checkpoints()
    names = {str(info.step) for info in there if info.state != "quarantined"}
    odd = [
        path.name
        for path in (run.directory / "checkpoints").iterdir()
        if path.name not in names | {"quarantine", ".lock"}
    ]
    for info in there:
        if info.state == "quarantined":
            reason = json.loads((Path(info.path) / "reason.json").read_text())
            if reason["state"] != "uncommitted" or info.step not in cut_short:
                odd.append(f"{info.path}: {info.reason}")
    moved = {event.step for event in run.events() if event.kind == "checkpoint.quarantined"}
    odd += [f"step {step} was moved aside" for step in moved - cut_short]
    period = run.training.period
    newest = list(range(period, run.training.steps + 1, period)[-KEPT:])
    committed = [info.step for info in there if info.state == "committed"]
    # One that had been kept stays if the kill came between a commit and the deletion after it, and
    # no other was saved since.
    if committed[-KEPT:] != newest or len(committed) > KEPT + 1:
        odd.append(f"checkpoints of {committed}, and not of {newest}")
    return odd


# ---- many


def measure(
    kills: int,
    training: Training,
    seed: int,
    show: Callable[[str], None],
    keep: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Kills so many processes, in as many runs as it takes.

    Args:
      kills: How many.
      training: What is trained.
      seed: Of the moments.
      show: Is told of each run, when it has ended.
      keep: Is given what is known after each run.
    """
    draw = random.Random(seed)
    done: list[Kill] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="sps-") as scratch:
        reference = undisturbed(Path(scratch) / "undisturbed", training)
        began = time.monotonic()

        def known(runs: int) -> dict[str, Any]:
            return {
                "kills": len(done),
                "runs": runs,
                "seed": seed,
                "training": dataclasses.asdict(training),
                "undisturbed_s": reference.seconds,
                "save_s": reference.save_s,
                "seconds": time.monotonic() - began,
                "failed": failed,
                "phases": dict(collections.Counter(kill.phase for kill in done)),
                "half_written": sum(bool(kill.cut_short) for kill in done),
                "lost_steps": [max(0, (kill.step or kill.newest) - kill.newest) for kill in done],
                "moments": [dataclasses.asdict(kill) | {"newest": kill.newest} for kill in done],
            }

        runs = 0
        while len(done) + len(failed) < kills:
            run = Run(Path(scratch) / f"run-{runs}", training)
            left = kills - len(done) - len(failed)
            aims = (AIMS[n % len(AIMS)] for n in range(left))
            try:
                these = kill_and_restart(run, runs, reference, aims, draw)
                check_run(run, reference, these)
                done += these
                show(f"run {runs}: {len(these)} kills, {len(done)} in all")
            except KillError as error:
                failed.append(f"run {runs}: {error}\n{run.tail()}")
                show(failed[-1])
            runs += 1
            keep(known(runs))
        return known(runs)


def show_result(result: Mapping[str, Any]) -> None:
    print(f"{'killed at':<28}{'kills':>8}")
    for phase, count in sorted(result["phases"].items()):
        print(f"{phase:<28}{count:>8}")
    print(f"{'in all':<28}{result['kills']:>8}  in {result['runs']} runs")
    print(f"half-written checkpoints left by a kill, and moved aside: {result['half_written']}")
    lost = result["lost_steps"]
    print(f"steps done again: median {statistics.median(lost):g}, most {max(lost)}")
    print(f"runs that went wrong: {len(result['failed'])} (aim: 0)")
