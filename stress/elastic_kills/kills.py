"""Kills one trainer after another, and checks what the next one restores."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service.events import Event
from stress.elastic_kills.outcome import check_run
from stress.elastic_kills.runs import (
    AIMS,
    GLANCE_S,
    LIMIT_S,
    Aim,
    Kill,
    KillError,
    Reference,
    Run,
    Training,
    undisturbed,
)


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
            _wait(run, process, lambda events: len(_saved_next(events, period)) >= which)
            moment_s = draw.uniform(0.0, reference.save_s)
        elif aim == "restarted":
            _wait(run, process, lambda events: any(e.kind == "elastic.restored" for e in events))
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
    """Waits until a process has reported the awaited event, or has ended."""
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
    """Returns the phase of a process from its last events.

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


def measure(
    kills: int,
    training: Training,
    seed: int,
    show: Callable[[str], None],
    keep: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Kills a number of processes, in as many runs as needed.

    Args:
      kills: How many.
      training: The training of each run.
      seed: Of the moments.
      show: Called with each run after its end.
      keep: Called with the results after each run.
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
