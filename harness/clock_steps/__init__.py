"""A wall clock of the package's own, which a test steps.

Only Python code sees it. Native code has the machine's clock, and so has gRPC's Python code.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.processes import REPOSITORY

__all__ = ["SteppedClock"]


class SteppedClock:
    """A wall clock beside the machine's, in processes with these `variables`.

    Args:
      path: A file for it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.step(0.0)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a process that has this clock, and so have its children."""
        path = [str(Path(__file__).parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "SPS_TEST_CLOCK": str(self._path),
        }

    def step(self, seconds: float) -> None:
        """Sets it to so many seconds after the machine's clock."""
        draft = self._path.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(self._path)
