"""`sps wait`: waits for a submitted job."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_note
from shared_pathways_service.cli.errors import NOT_READY
from shared_pathways_service.cli.lookups.job_argument import JobName
from shared_pathways_service.cli.lookups.jobs_of_place import (
    exit_code_of_job,
    job_fields,
    job_home_of,
    job_text,
)
from shared_pathways_service.cli.options.cluster_options import Place, takes_place

__all__ = ["wait"]


@takes_place
def wait(
    name: JobName,
    *,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Wait so long. [default: without limit]"),
    ] = None,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Wait for a submitted job, and exit with its program's exit code.

    The exit code is 143 for a job that was cancelled, 125 for one that was lost with its service,
    and 3 if it has not ended in time.
    """
    job = job_home_of(place).wait(name, math.inf if timeout is None else timeout)
    if as_json:
        print_json(job_fields(job))
    elif job.state != "succeeded":
        print_note(f"{name}: {job_text(job)}")
    raise typer.Exit(NOT_READY if job.is_active else exit_code_of_job(job))
