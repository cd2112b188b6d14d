"""Copies the plug-in's files for interpreters without this package."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from shared_pathways_service.jax_client.plugin import (
    attempts,
    callback_barrier,
    callback_dispatch,
    callback_lanes,
    callback_names,
    callback_stream,
    callback_wire,
    callbacks,
    compile_calls,
    dumps,
    executables,
    explaining,
    forked,
    greeting,
    host_copies,
    local,
    plugin,
    quiet,
    run_notes,
    sockets,
    strict,
    workarounds,
)

__all__ = ["place"]

_BESIDE = (
    *(callback_barrier, callback_dispatch, callback_lanes, callback_names, callback_stream),
    *(
        callbacks,
        dumps,
        explaining,
        forked,
        greeting,
        local,
        workarounds,
        quiet,
        run_notes,
        sockets,
    ),
    *(attempts, callback_wire, compile_calls, executables, host_copies, strict),
)


def place(cache: Path) -> Path:
    """Creates the directory from which JAX loads the plug-in if it is on PYTHONPATH, or reuses it.

    Returns:
      The directory for PYTHONPATH; it contains only the plug-in.
    """
    paths = [Path(str(module.__file__)) for module in _BESIDE]
    files = {path.name: path.read_bytes() for path in paths}
    files["__init__.py"] = Path(plugin.__file__).read_bytes()
    root = cache / f"plugin-{hashlib.sha256(b''.join(files.values())).hexdigest()[:12]}"
    # A namespace package: JAX searches every directory of this name on Python's path.
    package = root / "jax_plugins" / "sps_proxy"
    package.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        copy = package / name
        if not copy.exists():
            # Atomically: another process may be importing it, or writing it too.
            with tempfile.NamedTemporaryFile(dir=root, delete=False) as file:
                file.write(source)
            Path(file.name).replace(copy)
    return root
