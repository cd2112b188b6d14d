"""`sps run`: runs any program on slices of the service."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cli.options.option_groups import takes_options
from shared_pathways_service.cli.options.run_options import RunOptions
from shared_pathways_service.cli.workload import Workload, exit_code_of

__all__ = ["run"]


@takes_place
@takes_options("options", RunOptions)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="The program and its arguments."),
    ] = None,
    *,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", help="Run this command, split as by a shell, instead of COMMAND."
        ),
    ] = None,
    options: RunOptions,
    place: Place,
) -> None:
    """Run a program on slices of the service.

    The exit code is the program's. It is 125 for failures of `sps` itself, 126 if the program
    cannot be run, and 127 if it does not exist.
    """
    program = _program(words, command)

    def work() -> int:
        return Workload(
            command=program,
            request=place.request(**options.keywords()),
            variables=os.environ,
            tune_allocator=options.tune_allocator,
            json_events=options.json_events,
        ).run()

    raise typer.Exit(exit_code_of(work))


def _program(words: Sequence[str] | None, command: str | None) -> list[str]:
    """Returns the program and its arguments from COMMAND or --command."""
    if bool(words) == bool(command):
        problem = "Give COMMAND or --command, not both" if words else "Missing COMMAND"
        raise typer.BadParameter(f"{problem}: the program to run.")
    if not command:
        return list(words or ())
    try:
        return shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"--command: {error}.") from error
