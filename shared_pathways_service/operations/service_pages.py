"""Creates, changes and deletes the page of a service in its cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import item
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.page_inputs import page_text
from shared_pathways_service.manifests.page_parts import page_name
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import page_of_service
from shared_pathways_service.operations.cluster_access import Cluster, Object
from shared_pathways_service.operations.service_objects import NewObjects, find_own

__all__ = ["change_page", "delete_page", "ensure_page", "settle_page"]

#: All objects that a page may have, in the order of their deletion.
_RESOURCES: Final = ("deployments", "services", "rolebindings", "roles", "serviceaccounts")


async def ensure_page(cluster: Cluster, inputs: ServiceInputs, new: NewObjects) -> bool:
    """Creates the page of a service, or makes it as the inputs want it; does nothing without one.

    What was changed by hand on objects whose inputs stay the same remains. What is created is added
    to `new`, also if it fails.

    Returns:
      Whether anything was created or changed.

    Raises:
      InvalidRequestError: An object of that name belongs to something else.
    """
    has_changed = False
    for resource, body in page_of_service(inputs).items():
        sent = _with_record(body)
        try:
            await new.create(resource, sent)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            has_changed |= await _change(cluster, resource, sent, inputs.name)
        else:
            has_changed = True
    return has_changed


async def settle_page(cluster: Cluster, before: ServiceInputs, after: ServiceInputs) -> bool:
    """Gives a service the page of its new inputs, or takes its page away.

    Returns:
      Whether anything was created, changed or deleted.
    """
    if after.page is not None:
        has_changed = await ensure_page(cluster, after, NewObjects(cluster))
        # Other images need other rights.
        unwanted = [one for one in _RESOURCES if one not in page_of_service(after)]
        return await delete_page(cluster, after.name, unwanted) or has_changed
    # (An operator may not read what services without a page have no need of.)
    return before.page is not None and await delete_page(cluster, after.name)


async def change_page(
    cluster: Cluster, jobset: Object, before: ServiceInputs, after: ServiceInputs
) -> bool:
    """Does the same for a service that goes on, and records it in its JobSet."""
    has_changed = await settle_page(cluster, before, after)
    if after.page == before.page:
        return has_changed
    text = None if after.page is None else page_text(after.page)
    annotations = {names.ANNOTATION_PAGE: text}
    patch = {"metadata": {"uid": jobset["metadata"]["uid"], "annotations": annotations}}
    await cluster.api.patch(item("jobsets", cluster.namespace, after.name), patch)
    return True


async def delete_page(
    cluster: Cluster, service: str, resources: Sequence[str] = _RESOURCES
) -> bool:
    """Deletes the page of a service, or some of its objects; returns False if there is none."""
    has_deleted = False
    for resource in resources:
        path = item(resource, cluster.namespace, page_name(service))
        found = await cluster.api.find(path)
        if found is not None and names.labels_of(found).get(names.LABEL_SERVICE) == service:
            has_deleted |= await cluster.api.delete(path, uid=found["metadata"]["uid"])
    return has_deleted


async def _change(cluster: Cluster, resource: str, sent: dict[str, Any], service: str) -> bool:
    """Makes an object of the page as it was to be created, if its inputs have changed."""
    name = sent["metadata"]["name"]
    found = await find_own(
        cluster, resource, name, service=service, kind=sent["kind"], instead="--no-ui"
    )
    record = sent["metadata"]["annotations"]
    if found is not None and record.items() <= (found["metadata"].get("annotations") or {}).items():
        return False
    metadata = {"annotations": record}
    if found is not None:
        metadata["uid"] = found["metadata"]["uid"]
    await cluster.api.patch(item(resource, cluster.namespace, name), {**sent, "metadata": metadata})
    return True


def _with_record(body: dict[str, Any]) -> dict[str, Any]:
    """Returns an object with a record of what was sent, by which changed inputs are recognized."""
    content = {key: value for key, value in body.items() if key != "metadata"}
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    annotations = {names.ANNOTATION_SENT_SPEC: text}
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}
