"""The home in a cluster promises the agent what the others do: see `tests.agent`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import cast

import pytest

from harness.testbed.kills import all_free, served
from shared_pathways_service.homes.base import Home
from shared_pathways_service.homes.kubernetes.home import KubernetesHome
from shared_pathways_service.testing.testbed import DeployedService, Testbed
from shared_pathways_service.testing.testbed.kubeconfig import CONTEXT
from tests.agent.test_home_contract import (
    test_a_proxy_from_its_creation_to_its_end,
    test_a_session_is_enough_to_delete_by_and_another_hits_nothing,
    test_the_end_is_told_to_who_follows,
)

__all__ = [
    "test_a_proxy_from_its_creation_to_its_end",
    "test_a_session_is_enough_to_delete_by_and_another_hits_nothing",
    "test_the_end_is_told_to_who_follows",
]


@pytest.fixture(scope="module")
def service(testbed: Testbed) -> Iterator[DeployedService]:
    with served(testbed) as made:
        yield made


@pytest.fixture
def make(service: DeployedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Home]]:
    """Makes homes of one service, as many as the test wants."""
    namespace = service.namespace
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("tenant")))
    home = functools.partial(KubernetesHome, namespace=namespace.name, context=CONTEXT)
    yield cast(type[Home], home)
    all_free(service)
