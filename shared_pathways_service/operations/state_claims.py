"""Creates, enlarges and deletes the claim of the volume with a service's state."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import uuid
from collections.abc import AsyncGenerator
from typing import Final

from shared_pathways_service.errors import (
    AccessDenied,
    InvalidRequestError,
    ServiceNotReady,
    SharedPathwaysError,
)
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.state_parts import (
    DEFAULT_SIZE,
    claim_name,
    size_in_bytes,
    state_claim,
)
from shared_pathways_service.operations.cluster_access import Cluster, Object
from shared_pathways_service.operations.service_objects import find_own, undone_if_refused
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["claimed", "delete_state", "find_claim", "with_state"]

_CLAIMS: Final = "persistentvolumeclaims"
_IS_DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"
#: Seconds between two polls of a claim that is being deleted.
_PAUSE_S: Final = 0.2


async def find_claim(cluster: Cluster, service: str) -> Object | None:
    """Returns the claim of a service's state; None: there is none.

    Raises:
      InvalidRequestError: A claim of that name belongs to something else.
    """
    return await find_own(
        cluster,
        _CLAIMS,
        claim_name(service),
        service=service,
        kind="PersistentVolumeClaim",
        instead="`--state-size 0`",
    )


async def with_state(cluster: Cluster, inputs: ServiceInputs) -> tuple[ServiceInputs, str]:
    """Gives a new service a volume for its state, if the cluster can.

    Returns:
      The inputs, and why they have no volume; empty: they have one, or cannot use one.
    """
    if not is_ours(inputs.image):
        return inputs, ""
    try:
        claim = await find_claim(cluster, inputs.name)
        if claim is not None:
            return dataclasses.replace(inputs, state_size=_size_of(claim)), ""
        classes = (await cluster.api.get(collection("storageclasses"))).get("items") or ()
    except (AccessDenied, InvalidRequestError) as error:
        return inputs, error.message
    for one in classes:
        if (one["metadata"].get("annotations") or {}).get(_IS_DEFAULT) == "true":
            return dataclasses.replace(inputs, state_size=DEFAULT_SIZE), ""
    return inputs, "the cluster has no default StorageClass"


@contextlib.asynccontextmanager
async def claimed(cluster: Cluster, inputs: ServiceInputs) -> AsyncGenerator[None, None]:
    """Creates the claim that a service needs, or enlarges it, before the block creates the service.

    If the cluster refuses the service, a new claim is deleted again.

    Raises:
      InvalidRequestError: The existing claim has another StorageClass, or is being deleted.
      ServiceNotReady: The service exists, but another command has deleted the claim meanwhile, and
        it still exists after some seconds.
    """
    if not inputs.state_size:
        yield
        return
    created = await _ensure(cluster, inputs)
    async with contextlib.AsyncExitStack() as stack:
        if created is not None:
            undo = functools.partial(_delete_unless_used, cluster, inputs, created)
            await stack.enter_async_context(undone_if_refused(cluster, inputs.name, undo))
        yield
    if created is None:
        # A concurrent deploy that was refused may have deleted what was found.
        await _restore(cluster, inputs)


async def delete_state(cluster: Cluster, service: str, *, timeout_s: float) -> bool:
    """Deletes a service's claim, and waits for its end; returns False without one.

    Raises:
      ServiceNotReady: It still exists after the timeout.
    """
    claim = await find_claim(cluster, service)
    if claim is None:
        return False
    try:
        async with asyncio.timeout(timeout_s):
            await _delete(cluster, claim)
            while (left := await find_claim(cluster, service)) is not None:
                if left["metadata"]["uid"] != claim["metadata"]["uid"]:
                    break
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError as error:
        raise ServiceNotReady(
            f"the claim {claim_name(service)} still exists after {timeout_s:g} s",
            hint="it ends with the last pod that mounts it: "
            f"`{cluster.kubectl('describe', 'pvc', claim_name(service))}` shows them",
        ) from error
    return True


async def _delete(cluster: Cluster, claim: Object) -> None:
    metadata = claim["metadata"]
    path = item(_CLAIMS, cluster.namespace, metadata["name"])
    await cluster.api.delete(path, uid=metadata["uid"])


async def _delete_unless_used(cluster: Cluster, inputs: ServiceInputs, claim: Object) -> None:
    """Deletes a new claim; creates it again for a service that was created meanwhile.

    A concurrent command may have found it, and then have created the service.
    """
    with contextlib.suppress(SharedPathwaysError):
        await _delete(cluster, claim)
    if await cluster.api.find(item("jobsets", cluster.namespace, inputs.name)) is not None:
        await _restore(cluster, inputs)


async def _restore(cluster: Cluster, inputs: ServiceInputs) -> None:
    """Creates the claim of an existing service again if another command has deleted it.

    Raises:
      ServiceNotReady: It is still being deleted after some seconds.
    """
    try:
        async with within(timeouts.CLAIM_END):
            while (found := await find_claim(cluster, inputs.name)) is not None:
                if "deletionTimestamp" not in found["metadata"]:
                    return
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError as error:
        raise ServiceNotReady(
            f"the service {inputs.name} exists, but another command has deleted its claim "
            f"{claim_name(inputs.name)}, which ends with the pod that uses it",
            hint=f"`{cluster.sps('undeploy', inputs.name)}`, and deploy it again",
        ) from error
    try:
        await _create(cluster, inputs)
    except ApiError as error:
        # The other command has created it again as well.
        if error.reason != "AlreadyExists":
            raise


async def _create(cluster: Cluster, inputs: ServiceInputs) -> Object:
    claim = state_claim(
        inputs.name,
        inputs.namespace,
        size=inputs.state_size,
        storage_class=inputs.storage_class,
        session=str(uuid.uuid4()),
    )
    return await cluster.api.create(collection(_CLAIMS, cluster.namespace), claim)


async def _ensure(cluster: Cluster, inputs: ServiceInputs) -> Object | None:
    """Creates or enlarges a claim; returns it if it is new."""
    found = await find_claim(cluster, inputs.name)
    if found is None:
        return await _create(cluster, inputs)
    _check_usable(cluster, found, inputs)
    if size_in_bytes(inputs.state_size) > size_in_bytes(_size_of(found)):
        requests = {"requests": {"storage": inputs.state_size}}
        path = item(_CLAIMS, cluster.namespace, found["metadata"]["name"])
        await cluster.api.patch(path, {"spec": {"resources": requests}})
    return None


def _check_usable(cluster: Cluster, claim: Object, inputs: ServiceInputs) -> None:
    name = claim["metadata"]["name"]
    if "deletionTimestamp" in claim["metadata"]:
        raise InvalidRequestError(
            "NAME",
            inputs.name,
            "a name whose claim is not being deleted",
            message=f"the claim {name} is being deleted",
            hint="try again when it is gone: "
            f"`{cluster.kubectl('describe', 'pvc', name)}` shows what uses it",
        )
    its_class = str(claim["spec"].get("storageClassName") or "")
    if inputs.storage_class and inputs.storage_class != its_class:
        expected = f"{its_class or 'none'}, the class of the existing claim {name}"
        raise InvalidRequestError("--storage-class", inputs.storage_class, expected)


def _size_of(claim: Object) -> str:
    size = str(claim["spec"]["resources"]["requests"]["storage"])
    # The API server writes a fraction of a byte in thousandths: 0.1Gi is 107374182400m.
    return str(-(-int(size[:-1]) // 1000)) if size.endswith("m") else size
