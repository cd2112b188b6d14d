"""`sps cancel`: ends a submitted job."""

from __future__ import annotations

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.job_argument import JobName
from shared_pathways_service.cli.lookups.jobs_of_place import job_fields, job_home_of, job_text
from shared_pathways_service.cli.options.cluster_options import Place, takes_place

__all__ = ["cancel"]


@takes_place
def cancel(name: JobName, *, as_json: AsJson = False, place: Place) -> None:
    """End a submitted job: its program gets SIGTERM, and is killed 10 seconds later."""
    job = job_home_of(place).cancel(name)
    if as_json:
        print_json(job_fields(job))
    else:
        print_line(f"{name}: {job_text(job)}")
