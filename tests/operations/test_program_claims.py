"""Which claims services keep compiled programs on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.errors import PreflightError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.program_claims import check_programs

INPUTS = ServiceInputs(
    name="pw",
    namespace="team-a",
    instances={"tpuv6e:2x2": 2},
    image="r.io/shared-pathways-service/server:1",
    verify_users=True,
    compiled_programs=True,
)


class Api:
    """A cluster with these access modes of the claim, and with a policy or without."""

    def __init__(self, *modes: str, has_policy: bool = True) -> None:
        self.access = cast("Any", type("Access", (), {"name": "here"}))
        self._modes = modes
        self._has_policy = has_policy

    async def find(self, path: str) -> Mapping[str, Any] | None:
        if "/admissionregistration.k8s.io/" in path:
            return {} if self._has_policy else None
        assert path.endswith("/namespaces/team-a/persistentvolumeclaims/pw-compiled-programs")
        return {"spec": {"accessModes": list(self._modes)}} if self._modes else None


def check(api: Api) -> None:
    asyncio.run(check_programs(Cluster(cast("KubeApi", api), "team-a"), INPUTS))


def test_a_claim_must_be_there_for_many_nodes() -> None:
    check(Api("ReadWriteOnce", "ReadWriteMany"))
    with pytest.raises(PreflightError, match="has no PersistentVolumeClaim pw-compiled-programs"):
        check(Api())
    with pytest.raises(PreflightError, match="has no ReadWriteMany"):
        check(Api("ReadWriteOnce"))


def test_without_the_policy_programs_are_not_kept() -> None:
    with pytest.raises(PreflightError, match="no ValidatingAdmissionPolicyBinding"):
        check(Api("ReadWriteMany", has_policy=False))
