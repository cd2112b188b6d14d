"""Connections, and `sps run`, while file operations of them, agents or the service fail."""

from __future__ import annotations

import errno
import os
import shutil
import sys

from harness.embedded import KIND, journal_files, nothing_left
from harness.file_faults import FileFault
from harness.programs import sps
from shared_pathways_service.agent.journal import DRAFT
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.runtime.settings import Settings
from stress.file_faults.outcomes import fault_in, run_program, sps_with

__all__ = ["is_left", "wrong_of_run", "wrong_of_session"]

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
#: What a program computes below `sps run`.
_SUM = "import jax.numpy as jnp; print(float(jnp.arange(4.0).sum()))"


def wrong_of_session(fault: FileFault, setting: str) -> str:
    """Connects and computes with a fault; returns what was wrong."""
    said = run_program(_CLIENT, fault=fault)
    if said == {"value": 6.0}:
        return ""
    error = said.get("error") or {"message": f"no answer: {said}"}
    text = " ".join(str(error.get(field)) for field in ("message", "hint"))
    return fault_in(text, fault, setting)


def wrong_of_run(fault: FileFault, setting: str) -> str:
    """Computes below `sps run` with a fault; returns what was wrong."""
    settings = Settings.load()
    # (It makes the files there once.)
    shutil.rmtree(settings.cache_dir, ignore_errors=True)
    done = sps_with(fault, "run", f"--slices={KIND}=1", "--", sys.executable, "-c", _SUM)
    if done.returncode and (wrong := fault_in(done.stderr, fault, setting)):
        return wrong
    if not done.returncode and done.stdout != "6.0\n":
        return f"{fault}: {fault.failed[:1]}: {done.stdout}: {done.stderr}"
    left = [*settings.state_dir.glob("run-*"), *settings.cache_dir.rglob("tmp*")]
    # (Elsewhere removals fail as well.)
    if left and fault.number in (errno.ENOSPC, errno.EDQUOT):
        return f"{fault}: {fault.failed[:1]}: left behind: {left}"
    return ""


def is_left() -> str:
    """Returns what a session left behind that `sps reap` does not remove."""
    for path in journal_files():
        # (Where files cannot be removed either, drafts stay; it removes them when they are old.)
        if path.suffix == DRAFT:
            os.utime(path, (0, 0))
    sps("reap")
    try:
        is_clean = nothing_left()
    except ServiceNotFound:
        # (One that could not be started has nothing.)
        is_clean = not journal_files()
    return "" if is_clean else f"left behind: {[path.name for path in journal_files()]}"
