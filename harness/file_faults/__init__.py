"""File operations that fail, in processes of a test: a full disk, a quota, a file system gone bad.

A process that has the directory of this package's `sitecustomize` on its PYTHONPATH counts the
operations that change something below a directory: opening, making, renaming and removing, each
write (of which a part is done), sync and close. From a given one on (or only that one) they raise
an error, as the system would. What libraries in other languages write is not among them.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Mapping
from pathlib import Path

from harness.processes import REPOSITORY

__all__ = ["FileFault"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFault:
    """Where, when and how file operations fail.

    Attributes:
      role: A part of the command lines of the processes where they do, e.g. ``supervisor``.
      directory: Below which they do.
      first: The number of the first operation that fails in each such process, from 1 on.
      number: Of the error, e.g. `errno.ENOSPC`.
      lasts: Whether the ones after it fail, too. (Removals never fail for lack of space.)
      switch: Operations are counted, and fail, only while this file exists; None: always.
      told: A file with a line for each operation that has failed.
    """

    role: str
    directory: Path
    first: int
    number: int
    told: Path
    lasts: bool = True
    switch: Path | None = None

    def variables(self) -> Mapping[str, str]:
        """Returns the variables of a program with it; its processes inherit them."""
        path = [str(Path(__file__).parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        fields = [self.role, self.directory, self.first, self.number, int(self.lasts), self.told]
        fields.append(self.switch or "")
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "SPS_TEST_FILE_FAULT": ":".join(map(str, fields)),
        }

    @property
    def failed(self) -> list[str]:
        """The operations that have failed, e.g. ``open /s/journal/1.new``."""
        return self.told.read_text().splitlines() if self.told.exists() else []

    def __str__(self) -> str:
        return f"{self.role}-{errno.errorcode[self.number]}-{self.first}"
