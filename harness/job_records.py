"""Records of submitted jobs, for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from harness.processes import ended_process
from shared_pathways_service.runtime.embedded.job_files import JobRecord

__all__ = ["job_record"]


def job_record(**fields: Any) -> JobRecord:
    """Returns the record of a job, of a service that has ended, with these fields."""
    known = JobRecord(
        name="fit",
        uid="0f",
        state="running",
        command=("true",),
        workdir="/",
        slices=(),
        retries=0,
        runtime_dir="/r",
        supervisor=ended_process(),
        submitted_at=1.0,
    )
    return dataclasses.replace(known, **fields)
