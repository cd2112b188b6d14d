"""Python environments that do not have this package, wherever the tests' own has it from."""

from __future__ import annotations

import site
import sys
import venv
from pathlib import Path

#: What an installation of this package puts beside other packages, editable or not; and what adds
#: directories to Python's path, by which a package may be found that does not lie here.
_NOT_TAKEN = ("shared_pathways_service*", "_shared_pathways_service*", "__editable__*", "*.pth")


def environment_without_us(directory: Path) -> str:
    """Makes an environment that has every package of this one but ours; returns its Python.

    Args:
      directory: Where; it is made.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "lib" / version / "site-packages"
    places = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    for place in map(Path, places):
        for entry in place.iterdir() if place.is_dir() else ():
            link = packages / entry.name
            if not any(entry.match(pattern) for pattern in _NOT_TAKEN) and not link.exists():
                link.symlink_to(entry)
    return str(directory / "bin" / "python")
