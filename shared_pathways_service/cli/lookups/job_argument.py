"""The argument that names a submitted job."""

from __future__ import annotations

from typing import Annotated

import typer

from shared_pathways_service.cli.lookups.completion import job_names

__all__ = ["JobName"]

JobName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the job, as in `sps list`.", autocompletion=job_names
    ),
]
