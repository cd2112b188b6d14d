"""The control plane: it comes up, knows its users, and comes back after a crash."""

from __future__ import annotations

import pytest

from shared_pathways_service.testing.testbed import ApiRefused, Namespace


def test_tenant_may_create_jobs_and_nothing_of_others(namespace: Namespace) -> None:
    tenant = namespace.testbed.api_of(namespace.user("tenant"))
    assert tenant.items(namespace.path("batch/v1/jobs")) == []
    with pytest.raises(ApiRefused) as refused:
        tenant.items(namespace.path("configmaps"))
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
    with pytest.raises(ApiRefused, match="Forbidden"):
        tenant.items("/api/v1/namespaces/default/pods")


def test_ended_token_is_refused(namespace: Namespace) -> None:
    user = namespace.user("tenant")
    api = namespace.testbed.api_of(user)
    assert api.items(namespace.path("pods")) == []
    fresh = namespace.renew_token("tenant")
    with pytest.raises(ApiRefused) as refused:
        api.items(namespace.path("pods"))
    assert (refused.value.status, refused.value.reason) == (401, "Unauthorized")
    assert namespace.user("tenant") == fresh
    assert namespace.testbed.api_of(fresh).items(namespace.path("pods")) == []
