from __future__ import annotations

import pytest

from shared_pathways_service.cluster_state.proxy_progress import create_refused
from shared_pathways_service.errors import (
    CapacityError,
    InvalidRequestError,
    ProxyFailed,
    SharedPathwaysError,
)

QUOTA = 'jobs.batch "p" is forbidden: exceeded quota: limit, requested: count/jobs.batch=1'
POLICY = 'admission webhook "policy" denied the request: no'
INVALID = 'Job.batch "p" is invalid: metadata.labels: Invalid value: "?"'


def refused(reason: str, message: str) -> SharedPathwaysError:
    return create_refused("p", "ns", reason=reason, message=message)


def test_a_name_that_is_taken() -> None:
    error = refused("AlreadyExists", 'jobs.batch "p" already exists')
    assert isinstance(error, InvalidRequestError)
    assert (error.field, error.value) == ("proxy_job_name", "p")
    assert "namespace ns" in error.expected


@pytest.mark.parametrize(
    ("reason", "message", "kind"),
    [
        ("Forbidden", QUOTA, CapacityError),
        ("Forbidden", POLICY, ProxyFailed),
        ("Invalid", INVALID, ProxyFailed),
    ],
)
def test_other_refusals(reason: str, message: str, kind: type[SharedPathwaysError]) -> None:
    error = refused(reason, message)
    assert type(error) is kind
    assert message in error.message
    assert "proxy p" in error.message
    assert error.hint
