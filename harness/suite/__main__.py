"""Runs the project's tests, as `scripts/test` does: ``python -m harness.suite [--all]``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from harness.suite.phases import form_of
from harness.suite.run import Run
from shared_pathways_service.runtime.settings import Settings


def main(arguments: Sequence[str]) -> int:
    """Runs the layers unit and local, or with ``--all`` all of them; returns the exit status."""
    if list(arguments) not in ([], ["--all"]):
        print(f"error: {' '.join(arguments)}: --all is the only option", file=sys.stderr)
        return 2
    form = form_of(everything=bool(arguments), cores=os.cpu_count() or 1)
    return Run(form, Settings.load().cache_dir / "test-runs").run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
