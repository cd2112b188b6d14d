"""Runs `sps run` like upstream's `run_workload`, with flags in absl's syntax.

Usage: ``python -m shared_pathways_service.run_workload --command "…"``.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared_pathways_service.cli.absl_flags import run_command

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a program on slices of the service, and ends the process with the program's exit code.

    Args:
      arguments: By default those of the process.
    """
    run_command("run", arguments)


if __name__ == "__main__":
    main()
