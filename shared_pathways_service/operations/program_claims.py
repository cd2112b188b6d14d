"""Checks the claim for the compiled programs of a service's users."""

from __future__ import annotations

import asyncio

from shared_pathways_service.errors import PreflightError
from shared_pathways_service.kube.paths import item
from shared_pathways_service.manifests.rbac import VERIFICATION
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.verified_users.program_parts import programs_claim
from shared_pathways_service.manifests.verified_users.program_policy import PROGRAM_POLICY
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.deployment import policy_paths

__all__ = ["check_programs"]

#: Two nodes may write to it, as proxies are on several.
_SHARED = "ReadWriteMany"


async def check_programs(cluster: Cluster, inputs: ServiceInputs) -> None:
    """Refuses to keep compiled programs if the cluster does not have what that needs.

    Raises:
      AccessDenied: The permission to find that out is missing.
      PreflightError: The claim or the admission policy is missing, or the claim is not shared.
    """
    if not inputs.compiled_programs:
        return
    paths = policy_paths(PROGRAM_POLICY)
    found = await asyncio.gather(*map(cluster.api.find, paths.values()))
    if missing := [name for name, one in zip(paths, found, strict=True) if one is None]:
        command = f"sps render {VERIFICATION} --namespace {cluster.namespace}"
        raise PreflightError(
            f"{cluster.place} has no {', no '.join(missing)}",
            hint=f"ask the cluster's administrator to run `{command} | kubectl apply -f -` again",
        )
    name = programs_claim(inputs.name)
    claim = await cluster.api.find(item("persistentvolumeclaims", cluster.namespace, name))
    if claim is None or _SHARED not in claim["spec"]["accessModes"]:
        what = "has no" if claim is None else f"has no {_SHARED}"
        raise PreflightError(
            f"{cluster.place} {what} PersistentVolumeClaim {name}",
            hint=f"create it with the access mode {_SHARED}, for the programs of all users",
        )
