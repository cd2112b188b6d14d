"""`sps submit`: hands a program over to the service, which runs it on slices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_note
from shared_pathways_service.cli.display.step_display import showing_progress
from shared_pathways_service.cli.lookups.jobs_of_place import job_home_of
from shared_pathways_service.cli.lookups.logouts import logout_note_of_service
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cli.options.run_options import RunOptions
from shared_pathways_service.cli.options.submit_options import (
    Environment,
    ImageName,
    Name,
    Retries,
    Workdir,
    WorkdirBucket,
    keywords_of,
    takes_run_options,
)
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.submission import checked_job

__all__ = ["submit"]


@takes_place
@takes_run_options
def submit(
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="The program and its arguments.")
    ],
    *,
    name: Name = None,
    env: Environment = None,
    workdir: Workdir = Path(),
    workdir_bucket: WorkdirBucket = None,
    retries: Retries = 0,
    image: ImageName = None,
    as_json: AsJson = False,
    options: RunOptions,
    place: Place,
) -> None:
    """Hand a program over to the service, which runs it on slices; print the job's name.

    The program outlives this shell. It gets the usual variables, such as PATH and HOME, and those
    of --env. In a cluster it gets only the latter, and the files of --workdir are sent to it. There
    its arguments are visible to everyone who may read Jobs: use --env for secrets.
    """
    home = job_home_of(place)
    request = checked_job(
        words,
        name=name,
        workdir=workdir,
        workdir_bucket=workdir_bucket,
        retries=retries,
        image=image,
        **keywords_of(options, env),
        **dataclasses.asdict(place),
    )
    with showing_progress() as tell:
        home.submit(request, tell)
    if home.name == "embedded" and (note := logout_note_of_service(Settings.load().runtime_dir)):
        print_note(note)
    if as_json:
        print_json({"name": request.name})
    else:
        print_line(request.name)
