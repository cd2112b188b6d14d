"""Requests of submitted jobs: names, checks, and the form in which they travel."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shared_pathways_service.api.job_requests import (
    JobRequest,
    check_environment,
    default_job_name,
)
from shared_pathways_service.api.requests import Requester
from shared_pathways_service.errors import InvalidRequestError

ADA = Requester(user="ada", host="laptop", suffix="x7k2p")


def job(command: Any = ("python", "train.py"), **arguments: Any) -> JobRequest:
    given = {"workdir": "/home/ada", "environment": {"SECRET": "hunter2"}, **arguments}
    return JobRequest.build(ADA, command, **given)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train-x7k2p"),
        (["python3.12", "-u", "src/My_Run.py", "--lr=0.1"], "my-run-x7k2p"),
        (["/usr/bin/bash", "go.sh"], "go-x7k2p"),
        (["python", "-c", "print(1.0)"], "python-x7k2p"),
        (["./fit", "data.py"], "fit-x7k2p"),
        (["_"], "job-x7k2p"),
        (["a" * 300], "a" * 51 + "-x7k2p"),
    ],
)
def test_a_job_is_named_for_its_program(command: list[str], name: str) -> None:
    assert default_job_name(command, "x7k2p") == name
    assert job(command).name == name


def test_a_request_travels_unchanged_and_hides_its_variables() -> None:
    request = job(
        retries=2, queue_timeout=math.inf, local_devices=False, strict=True, priority=7, name="fit"
    )
    assert JobRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    assert request.name == request.session.tenant.name == "fit"
    assert "hunter2" not in repr(request)


@pytest.mark.parametrize("umask", [0, 0o026, 0o777, None])
def test_a_umask_travels(umask: int | None) -> None:
    request = JobRequest.from_json(json.loads(json.dumps(job(umask=umask).to_json())))
    assert request.umask == umask


def test_requests_of_earlier_releases_have_no_umask() -> None:
    data = dict(job(umask=0o026).to_json())
    del data["umask"]
    assert JobRequest.from_json(data).umask is None


@pytest.mark.parametrize("umask", [-1, 0o1000, "022", 1.5])
def test_a_umask_that_no_process_can_have_is_refused(umask: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        JobRequest.from_json({**job().to_json(), "umask": umask})
    assert caught.value.field == "umask"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("command", {"command": []}),
        ("command", {"command": "python train.py"}),
        ("command", {"command": ["python", "a\0b"]}),
        ("command", {"command": ["python", 3]}),
        ("name", {"name": "Not_A_Label"}),
        ("retries", {"retries": -1}),
        ("retries", {"retries": 1.5}),
        ("queue_timeout", {"queue_timeout": -1}),
        ("env", {"environment": {"A B": "x"}}),
        ("env", {"environment": {"SPS_JOB_ID": "x"}}),
        ("env", {"environment": {"A": "x" * (1 << 21)}}),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        job(**arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("variables", [{"A": "hunter2\0"}, {"A=": "hunter2"}, {"A": b"hunter2"}])
def test_an_error_names_a_variable_and_not_its_value(variables: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_environment(variables)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("damage", [{"session": {}}, {"command": None}, {"client": {"x": 1}}])
def test_what_is_no_request_is_refused_without_its_secrets(damage: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        JobRequest.from_json({**job().to_json(), **damage})
    assert "hunter2" not in str(caught.value)
