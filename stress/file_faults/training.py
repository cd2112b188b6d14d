"""Training with checkpoints and a ledger while file operations fail.

What was reported as saved can be restored once there is room again, and training ends with the
right state. Each failure is an error, the reason of a failed save, or a warning, and names the
directory, its argument and the system's reason.
"""

from __future__ import annotations

from typing import Any

from harness.file_faults import FileFault
from shared_pathways_service.elastic.checkpoints.files import list_checkpoints
from shared_pathways_service.elastic.run_ledger import read_ledger
from stress.file_faults.outcomes import fault_in, run_program

__all__ = ["COMMAND", "wrong_of_training"]

#: A part of the program.
COMMAND = "elastic.Manager("
_STEPS = 6
_TRAINING = f"""
import json, logging, sys
import jax
jax.config.update("jax_platforms", "cpu")
import jax.numpy as jnp
from shared_pathways_service import elastic, errors

said = {{"saved": [], "restored": 0, "reports": []}}

class Reports(logging.Handler):
    def emit(self, record):
        said["reports"].append(record.getMessage())

logging.getLogger("shared_pathways_service").addHandler(Reports())

def hear(event):
    if event.kind == "checkpoint.saved":
        said["saved"].append(event.step)
    if event.kind == "elastic.restored":
        said["restored"] = event.step

def fit(attempt):
    state = attempt.restore({{"w": jnp.zeros(4)}})
    while attempt.progress.step < {_STEPS}:
        state = {{"w": state["w"] + 1.0}}
        attempt.step_done(state, state["w"].sum())
    return float(state["w"].sum())

try:
    with elastic.Manager(
        options=elastic.Options(checkpoint_period=2),
        directory=sys.argv[1],
        slice_key=lambda device: 0,
        on_event=hear,
        console=False,
    ) as manager:
        said["value"] = manager.run(fit)
except errors.SharedPathwaysError as error:
    said["reports"].append(f"{{error.message}} {{error.hint}}")
print(json.dumps(said))
"""


def wrong_of_training(fault: FileFault, setting: str) -> str:
    """Trains with a fault, and then without; returns what was wrong."""
    directory = str(fault.directory)
    said = run_program(_TRAINING, directory, fault=fault)
    wrong = _of_first(said, fault, setting)
    if wrong or not fault.failed:
        return wrong
    held = list_checkpoints(fault.directory / "checkpoints", checksums=True)
    there = {info.step for info in held if info.state == "committed"}
    if not set(said["saved"]) <= there:
        return f"{fault}: {fault.failed[:1]}: saved were {said['saved']}, there are {there}"
    again = run_program(_TRAINING, directory, fault=None)
    if again.get("value") != 4.0 * _STEPS or again["restored"] < max(said["saved"], default=0):
        return f"{fault}: {fault.failed[:1]}: after {said} it went on with {again}"
    if (skipped := read_ledger(directory).skipped) > 1:
        return f"{fault}: {fault.failed[:1]}: {skipped} lines of the ledger are torn"
    return ""


def _of_first(said: dict[str, Any], fault: FileFault, setting: str) -> str:
    if "crash" in said:
        return f"{fault}: {fault.failed[:1]}: {said['crash']}"
    if "value" in said and said["value"] != 4.0 * _STEPS:
        return f"{fault}: {fault.failed[:1]}: computed {said['value']}"
    # (The lock's file has the holder's name only, which is not missed at the end.)
    if not said["reports"] and any(not one.endswith("/checkpoints/.lock") for one in fault.failed):
        return f"{fault}: {fault.failed[:1]}: nothing was reported"
    return next(filter(None, (fault_in(text, fault, setting) for text in said["reports"])), "")
