"""The plug-in for interpreters that do not have this package: a copy of the one file."""

from __future__ import annotations

import shutil
from pathlib import Path

from shared_pathways_service.jaxside import plugin

__all__ = ["place"]


def place(directory: Path) -> Path:
    """Puts the plug-in into a directory, where JAX finds it when PYTHONPATH has the directory.

    Args:
      directory: Exists; nothing else is put on Python's path by it.

    Returns:
      What belongs on PYTHONPATH.
    """
    root = directory / "python"
    # A namespace package: JAX looks into every directory of this name on Python's path.
    package = root / "jax_plugins"
    package.mkdir(parents=True)
    shutil.copyfile(Path(plugin.__file__), package / "sps_proxy.py")
    return root
