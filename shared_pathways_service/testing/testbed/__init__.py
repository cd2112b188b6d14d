"""A real Kubernetes on this machine, for tests: its control plane, and pods as local processes.

`Testbed.start` brings it up; `docs/testbed.md` describes which parts are real.
"""

from __future__ import annotations

from shared_pathways_service.testing.testbed.api import Api, Object
from shared_pathways_service.testing.testbed.deployed_service import DeployedService, deploy_service
from shared_pathways_service.testing.testbed.errors import (
    ApiRefused,
    TestbedError,
    TestbedUnavailable,
)
from shared_pathways_service.testing.testbed.handle import Testbed
from shared_pathways_service.testing.testbed.namespace import Namespace, new_namespace
from shared_pathways_service.testing.testbed.users import User

__all__ = [
    "Api",
    "ApiRefused",
    "TestbedUnavailable",
    "DeployedService",
    "Namespace",
    "Object",
    "Testbed",
    "TestbedError",
    "User",
    "deploy_service",
    "new_namespace",
]
