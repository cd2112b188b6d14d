"""Locates this copy of the package, for child processes that must import it."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["PARENT_DIRECTORY", "with_package_path"]

#: The directory that contains the package.
PARENT_DIRECTORY: Final = str(Path(__file__).resolve().parents[2])


def with_package_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Python imports this copy of the package.

    An installed copy needs no variable, and adding its directory would put all other installed
    packages before the standard library.
    """
    if PARENT_DIRECTORY in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        return dict(environ)
    known = environ.get("PYTHONPATH")
    path = f"{PARENT_DIRECTORY}{os.pathsep}{known}" if known else PARENT_DIRECTORY
    return {**environ, "PYTHONPATH": path}
