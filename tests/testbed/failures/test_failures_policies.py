"""The cluster's own rules refuse a proxy: whose rule it is, and what it says, is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.testbed.clients import deployed, nothing_left
from shared_pathways_service.errors import CapacityError, ProxyFailed, SharedPathwaysError
from shared_pathways_service.testing.testbed import Namespace, Testbed, new_namespace
from tests.testbed.failing import failure
from tests.testbed.policies import limit_range, policy_that_denies

SAYS = "objects here need the label cost-center; ask platform@example.com"


@pytest.fixture(scope="module")
def served(testbed: Testbed) -> Iterator[Namespace]:
    """A namespace with a service that is ready."""
    with new_namespace(testbed) as namespace:
        deployed(namespace, 1)
        yield namespace


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        ("jobs", "Invalid"),
        ("jobs", "Forbidden"),
        ("jobs", "RequestEntityTooLarge"),
        ("secrets", "Forbidden"),
        # (Refused to the cluster's Job controller, not to the user.)
        ("pods", "Invalid"),
        ("pods", "Forbidden"),
    ],
)
def test_an_admission_policy_that_denies_what_a_proxy_needs(
    served: Namespace, resource: str, reason: str
) -> None:
    with policy_that_denies(served, resource, says=SAYS, reason=reason) as policy:
        error = failure(served, ProxyFailed)
    assert f"ValidatingAdmissionPolicy '{policy}'" in error.message
    assert SAYS in error.message
    assert "polic" in error.hint
    nothing_left(served)


@pytest.mark.parametrize(
    ("limits", "kind", "says"),
    [
        ({"max": {"memory": "1Mi"}}, CapacityError, "maximum memory usage per Container is 1Mi"),
        ({"min": {"memory": "900Gi"}}, ProxyFailed, "minimum memory usage per Container is 900Gi"),
        # (A proxy requests processors, and leaves their limit open.)
        ({"default": {"cpu": "100m"}}, ProxyFailed, "must be less than or equal to cpu limit"),
    ],
    ids=["max", "min", "default"],
)
def test_a_limit_range_that_a_proxy_exceeds(
    served: Namespace, limits: dict[str, object], kind: type[SharedPathwaysError], says: str
) -> None:
    with limit_range(served, {"type": "Container", **limits}):
        error = failure(served, kind)
    assert says in error.message
    nothing_left(served)
