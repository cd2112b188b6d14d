"""Finds this user's submitted jobs at a place, and what `sps` says of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from shared_pathways_service.agent.request import user_name
from shared_pathways_service.api.job_requests import JobStatus
from shared_pathways_service.cli.errors import DONE, FAILED, OWN_FAILURE, TERMINATED
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.homes.choice import make_job_home
from shared_pathways_service.homes.job_home import JobHome
from shared_pathways_service.runtime.settings import Settings

__all__ = ["exit_code_of_job", "find_job", "job_fields", "job_home_of", "job_text", "jobs_of"]


def job_home_of(place: Place) -> JobHome:
    """Returns the home of submitted jobs at a place."""
    return make_job_home(place.service, Settings.load(), user_name())


def jobs_of(place: Place) -> list[JobStatus]:
    """Returns this user's jobs at a place, the oldest first."""
    return list(job_home_of(place).jobs())


def find_job(place: Place, name: str | None) -> JobStatus | None:
    """Returns the job of a name; None if there is none."""
    if name is None:
        return None
    try:
        return job_home_of(place).job(name)
    except ServiceNotFound:
        return None


def job_fields(job: JobStatus) -> dict[str, Any]:
    """Returns a job for JSON."""
    return dataclasses.asdict(job)


def job_text(job: JobStatus) -> str:
    """Returns the state of a job for people."""
    text: str = job.state
    if job.attempt > 1:
        text += f", attempt {job.attempt} of {job.retries + 1}"
    if job.reason:
        text += f": {job.reason}"
    return text


def exit_code_of_job(job: JobStatus) -> int:
    """Returns the exit code of commands that wait for a job: its program's, if it has one."""
    if job.state == "succeeded":
        return DONE
    if job.state == "cancelled":
        return TERMINATED
    if job.state == "lost":
        return OWN_FAILURE
    return job.exit_code or FAILED
