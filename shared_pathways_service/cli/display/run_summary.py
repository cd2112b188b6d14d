"""Warns at the end of `sps run` about a program that did not use its slices."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shared_pathways_service.jax_client.plugin import run_notes
from shared_pathways_service.jax_client.plugin.plugin import PASSED_ON, TRANSPORT
from shared_pathways_service.runtime.file_failures import explained
from shared_pathways_service.runtime.settings import Settings, private_directory

__all__ = ["notes", "warning"]

#: A Python without the package loads the plug-in by PYTHONPATH.
_REMEDY = (
    f" (if JAX misses the transport {TRANSPORT!r}: its Python lacks shared-pathways-service, and "
    "ignores PYTHONPATH, as with -E or -I, or got another one: install the package there; if a "
    "launcher cleans the environment, as `env -i`, tox, bazel and `sbatch --export=NONE` do: make "
    f"it pass on {', '.join(PASSED_ON)})"
)


@contextlib.contextmanager
def notes(settings: Settings) -> Iterator[Path]:
    """Creates the file to which the program's processes write; deletes it after the block.

    Raises:
      PreflightError: The file cannot be created.
    """
    directory = private_directory(settings.state_dir, "SPS_STATE_DIR")
    with explained(directory, "SPS_STATE_DIR"):
        descriptor, name = tempfile.mkstemp(prefix="run-", suffix=".notes", dir=directory)
        os.close(descriptor)
    try:
        yield Path(name)
    finally:
        # (A disk that has gone bad must not change the program's exit code.)
        with contextlib.suppress(OSError):
            Path(name).unlink()


def warning(path: Path, *, is_ours: bool) -> str:
    """Returns the warning about a program that has ended; empty if it used its slices.

    Also empty if the notes are gone, e.g. by a cleaner of old files: then it is not known.

    Args:
      path: The file of notes.
      is_ours: Whether the proxy is this project's, to which only the plug-in can connect.
    """
    usage = run_notes.read(path)
    if usage is None or usage.used or not (is_ours or usage.elsewhere):
        return ""
    why = (
        f"it ran on this machine ({', '.join(usage.elsewhere)})"
        if usage.elsewhere
        else f"none of its processes used JAX with this environment{_REMEDY if is_ours else ''}"
    )
    return f"the program did not use its slices: {why}"
