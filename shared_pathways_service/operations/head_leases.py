"""Creates and deletes the Lease of a service's head, and the account that renews it."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import item
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.lease_parts import lease_objects
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.service_objects import NewObjects, find_own

__all__ = ["delete_lease", "ensure_lease", "with_lease"]


async def with_lease(
    cluster: Cluster, inputs: ServiceInputs, new: NewObjects
) -> tuple[ServiceInputs, str]:
    """Gives a service a Lease if it has no volume that only one node can have.

    What it creates for that is added to `new`.

    Returns:
      The inputs, and why they have no Lease; empty: they have one, or need none.
    """
    if not is_ours(inputs.image) or inputs.state_size or inputs.lease:
        return inputs, ""
    wanted = dataclasses.replace(inputs, lease=True)
    try:
        await ensure_lease(cluster, wanted, new)
    except (AccessDenied, InvalidRequestError) as error:
        await new.undo()
        return inputs, error.message
    return wanted, ""


async def ensure_lease(cluster: Cluster, inputs: ServiceInputs, new: NewObjects) -> None:
    """Creates what a service with a Lease needs before its pods, where it is missing.

    What it creates is added to `new`, also if it fails.

    Raises:
      InvalidRequestError: An object of that name belongs to something else.
    """
    if not inputs.lease:
        return
    for resource, body in lease_objects(inputs.name, inputs.namespace).items():
        try:
            await new.create(resource, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await find_own(
                cluster,
                resource,
                body["metadata"]["name"],
                service=inputs.name,
                kind=body["kind"],
                instead="--no-lease",
            )
            if found is None:
                raise


async def delete_lease(cluster: Cluster, service: str) -> None:
    """Deletes what `ensure_lease` created, if it is there."""
    for resource, body in lease_objects(service, cluster.namespace).items():
        path = item(resource, cluster.namespace, body["metadata"]["name"])
        found = await cluster.api.find(path)
        if found is not None and names.labels_of(found).get(names.LABEL_SERVICE) == service:
            await cluster.api.delete(path, uid=found["metadata"]["uid"])
