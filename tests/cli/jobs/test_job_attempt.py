"""What one attempt of a submitted job reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.api.requests import Requester
from shared_pathways_service.cli import job_attempt
from shared_pathways_service.errors import CapacityError


def test_a_refusal_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> None:
        raise CapacityError("no slices:\n  2 are taken")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job_attempt, "Workload", refused)
    requester = Requester(user="ada", host="laptop", suffix="x7k2p")
    request = JobRequest.build(requester, ["python3"], workdir=str(tmp_path), environment={})
    reports: list[str] = []
    attempt = job_attempt.JobAttempt(
        request, "uid", 1, reports.append, workdir=tmp_path, variables={}
    )
    with pytest.raises(CapacityError):
        attempt.run()
    assert reports == ["refused no slices: 2 are taken"]
