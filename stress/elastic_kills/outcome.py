"""Compares an ended run with an undisturbed one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stress.elastic_kills.runs import (
    EXAMPLES,
    KEPT,
    Kill,
    KillError,
    Reference,
    Run,
)


def check_run(run: Run, reference: Reference, kills: Sequence[Kill]) -> None:
    """Looks at a run that has ended.

    Raises:
      KillError: The run differs from an undisturbed one, or left something.
    """
    notes = run.notes()
    noted = [note for note in notes if "step" in note]
    # Each line, also of a discarded step: repeated steps are the same as before.
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
    """Returns needless files, and checkpoints in quarantine that no kill interrupted."""
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
