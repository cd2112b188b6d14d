"""Why there are no lines of a connection's executors, and which of them are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.operations.service_readers.base import LogRequest
from shared_pathways_service.operations.service_readers.executor_logs import ExecutorLines
from shared_pathways_service.operations.service_readers.service_occupancy import only
from shared_pathways_service.runtime.executor_lines import ExecutorTag

_NAME = "ada"
_EMPTY: Mapping[str, Any] = {
    "service": {},
    "processes": [],
    "slices": [],
    "tenants": [{"name": _NAME}],
    "queue": [],
}
_SLICE = {"id": "slice-0", "tenant": _NAME}
_EXECUTOR = {"slice": "slice-0", "host": 0, "tenant": _NAME}


def lines(host: int | None = None) -> ExecutorLines:
    wanted = LogRequest(name=_NAME, component="executor", lines=10, follow=False, host=host)
    return ExecutorLines(wanted)


def status(**parts: Any) -> Mapping[str, Any]:
    return only({**_EMPTY, **parts}, _NAME)


def not_found(_name: str) -> Mapping[str, Any]:
    raise ServiceNotFound("there is no such connection")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"executors": []}, "ada holds no slices yet, and has no executors"),
        (
            {"executors": [_EXECUTOR], "slices": [_SLICE]},
            "the executors of ada have written nothing yet",
        ),
        # As from pods and labels, while the resource manager does not answer.
        ({}, "the logs of workers have no lines of executors of ada"),
    ],
)
def test_the_error_says_why_there_are_no_lines(parts: dict[str, Any], message: str) -> None:
    found = lines()
    assert found.check_status(lambda _: status(**parts))
    with pytest.raises(ServiceNotFound) as raised:
        found.check_found()
    assert raised.value.message == message


def test_a_connection_that_is_not_known_may_have_left_lines() -> None:
    found = lines()
    assert not found.check_status(not_found)
    with pytest.raises(ServiceNotFound, match="no lines of executors of ada"):
        found.check_found()

    tag = ExecutorTag(tenant=_NAME, slice_id="slice-0", host=1, generation=3)
    assert found.select(tag.line("hello")) == ("slice-0-1", "hello")
    assert found.select("hello") is None
    found.check_found()


def test_slices_without_executors_compute_in_the_proxy() -> None:
    with pytest.raises(ServiceNotFound, match="its programs run in its proxy"):
        lines().check_status(lambda _: status(executors=[], slices=[_SLICE]))
    with pytest.raises(InvalidRequestError, match="a host that has executors of ada: 0"):
        lines(1).check_status(lambda _: status(executors=[_EXECUTOR], slices=[_SLICE]))
