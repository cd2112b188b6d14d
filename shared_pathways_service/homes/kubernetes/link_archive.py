"""Builds the program of a link's far end as a zip archive that needs only Python."""

from __future__ import annotations

import functools
import importlib.resources
import io
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from typing import Final

__all__ = ["link_archive"]

_PACKAGE: Final = "shared_pathways_service"
_LINK: Final = f"{_PACKAGE}/tunnel/link"
#: Packages of which the far end needs only the name.
_EMPTY: Final = tuple(
    f"{_PACKAGE}/{name}__init__.py" for name in ("", "patience/", "runtime/", "tunnel/")
)
#: What it uses of the rest.
_OTHERS: Final = (
    "patience/factor.py",
    "patience/slowness.py",
    "patience/timeouts.py",
    "patience/within.py",
    "runtime/allocator.py",
    "runtime/listeners.py",
    "tunnel/liveness.py",
)
_MAIN: Final = f"""\
import runpy

runpy.run_module("{_LINK.replace("/", ".")}", run_name="__main__", alter_sys=True)
"""
#: Of the zip format, so that the same package makes the same archive.
_FIRST_DATE: Final = (1980, 1, 1, 0, 0, 0)


@functools.cache
def link_archive() -> bytes:
    """Returns the archive; ``python3 link.pyz`` runs it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in sorted(_files()):
            entry = zipfile.ZipInfo(name, date_time=_FIRST_DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text, compress_type=zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files() -> Iterator[tuple[str, str]]:
    """Yields the name and the content of each file."""
    root = importlib.resources.files(_PACKAGE)
    yield "__main__.py", _MAIN
    yield from ((name, "") for name in _EMPTY)
    yield from ((f"{_PACKAGE}/{name}", _text(root / name)) for name in _OTHERS)
    for file in (root / "tunnel" / "link").iterdir():
        # (The other end is not part of it.)
        if file.name.endswith(".py") and not file.name.startswith("near_"):
            yield f"{_LINK}/{file.name}", _text(file)


def _text(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")
