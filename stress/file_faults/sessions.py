"""Connections while file operations of the client, the agent or the service fail."""

from __future__ import annotations

import os

from harness.embedded import KIND, journal_files, nothing_left
from harness.file_faults import FileFault
from harness.programs import sps
from shared_pathways_service.agent.journal import DRAFT
from stress.file_faults.outcomes import fault_in, run_program

__all__ = ["is_left", "wrong_of_session"]

#: Says the sum that it computed, or its error.
_CLIENT = f"""
import json
from shared_pathways_service import errors, isc_pathways
try:
    with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}):
        import jax.numpy as jnp
        said = {{"value": float(jnp.arange(4.0).sum())}}
except errors.SharedPathwaysError as error:
    said = {{"error": error.to_json()}}
print(json.dumps(said))
"""


def wrong_of_session(fault: FileFault, setting: str) -> str:
    """Connects and computes with a fault; returns what was wrong."""
    said = run_program(_CLIENT, fault=fault)
    if said == {"value": 6.0}:
        return ""
    error = said.get("error") or {"message": f"no answer: {said}"}
    text = " ".join(str(error.get(field)) for field in ("message", "hint"))
    return fault_in(text, fault, setting)


def is_left() -> str:
    """Returns what a session left behind that `sps reap` does not remove."""
    for path in journal_files():
        # (Where files cannot be removed either, drafts stay; it removes them when they are old.)
        if path.suffix == DRAFT:
            os.utime(path, (0, 0))
    sps("reap")
    return "" if nothing_left() else f"left behind: {[path.name for path in journal_files()]}"
