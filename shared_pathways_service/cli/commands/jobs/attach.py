"""`sps attach`: shows the output and the progress of a submitted job."""

from __future__ import annotations

from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import print_line, print_note
from shared_pathways_service.cli.lookups.job_argument import JobName
from shared_pathways_service.cli.lookups.jobs_of_place import (
    exit_code_of_job,
    job_home_of,
    job_text,
)
from shared_pathways_service.cli.options.cluster_options import Place, takes_place

__all__ = ["attach"]


@takes_place
def attach(
    name: JobName,
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Show so many of the last lines.")
    ] = 100,
    place: Place,
) -> None:
    """Show the output and the progress of a submitted job, until it ends or you press Ctrl-C.

    Ctrl-C only detaches: the job goes on. Otherwise the exit code is that of `sps wait`.
    """
    home = job_home_of(place)
    print_note(f"{name}: {job_text(home.job(name))}")
    try:
        job = home.follow(
            name, lines, print_line, lambda status: print_note(f"{name}: {job_text(status)}")
        )
    except KeyboardInterrupt:
        attach_again, cancel = place.command("attach", name), place.command("cancel", name)
        print_note(f"detached; {name} goes on (`{attach_again}`, `{cancel}`)")
        return
    raise typer.Exit(exit_code_of_job(job))
