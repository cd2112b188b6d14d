"""The home in a cluster keeps the contract of homes."""

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
from tests.agent.home_contract import HomeContract


@pytest.fixture(scope="module")
def service(testbed: Testbed) -> Iterator[DeployedService]:
    with served(testbed) as made:
        yield made


@pytest.fixture
def make(service: DeployedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Home]]:
    """Returns what makes homes of one service."""
    namespace = service.namespace
    monkeypatch.setenv("KUBECONFIG", str(namespace.kubeconfig_of("tenant")))
    home = functools.partial(KubernetesHome, namespace=namespace.name, context=CONTEXT)
    yield cast(type[Home], home)
    all_free(service)


class TestKubernetesHome(HomeContract):
    pass
