"""Copies the plug-in's files for interpreters without this package."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from shared_pathways_service import patience
from shared_pathways_service.jax_client.plugin import plugin

__all__ = ["place"]


def place(cache: Path) -> Path:
    """Returns a directory for PYTHONPATH, which is cached, and from which JAX loads the plug-in.

    Raises:
      OSError: A file cannot be written, e.g. on a full disk.
    """
    entry = Path(plugin.__file__)
    paths = [path for path in sorted(entry.parent.glob("*.py")) if path != entry]
    table = Path(next(iter(patience.__path__)))
    paths += [path for path in sorted(table.glob("*.py")) if path.name != "__init__.py"]
    # The plug-in itself is what JAX imports.
    files = {path.name: path.read_bytes() for path in paths} | {"__init__.py": entry.read_bytes()}
    root = cache / f"plugin-{hashlib.sha256(b''.join(files.values())).hexdigest()[:12]}"
    # A namespace package: JAX searches every directory of this name on Python's path.
    package = root / "jax_plugins" / "sps_proxy"
    package.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        copy = package / name
        if not copy.exists():
            _write(copy, source, root)
    return root


def _write(path: Path, data: bytes, scratch: Path) -> None:
    """Writes a file atomically: another process may be importing it, or writing it too."""
    descriptor, name = tempfile.mkstemp(dir=scratch)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
