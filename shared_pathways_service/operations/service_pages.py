"""Creates, changes and deletes the page of a service in its cluster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Final

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.page_inputs import page_text
from shared_pathways_service.manifests.page_parts import page_name
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import page_of_service
from shared_pathways_service.operations.cluster_access import Cluster, Object
from shared_pathways_service.operations.service_objects import find_own

__all__ = ["change_page", "check_page", "delete_page", "ensure_page", "has_page", "settle_page"]

#: All objects that a page may have, in the order of their deletion.
_RESOURCES: Final = ("deployments", "services", "rolebindings", "roles", "serviceaccounts")
#: Objects of a page that are changed in place; the others are deleted and created, so that an
#: operator needs no right to change accounts and roles.
_PATCHED: Final = ("deployments", "services")
_SUFFIX: Final = page_name("")


def has_page(jobset: Object) -> bool:
    """Whether a JobSet says that its service has a page."""
    return names.ANNOTATION_PAGE in (jobset["metadata"].get("annotations") or {})


async def check_page(cluster: Cluster, inputs: ServiceInputs) -> None:
    """Checks that the cluster would create the page of a service; creates nothing.

    Raises:
      InvalidRequestError: An object of the page's name belongs to something else, or the service's
        name is that of another service's page.
      AccessDenied: The user may not create an object of the page.
      ApiError: The cluster refuses an object of the page.
    """
    await _check_names(cluster, inputs)
    for resource, body in page_of_service(inputs).items():
        if resource == "rolebindings":
            # (It is refused without its role, which a dry run does not create.)
            continue
        path = collection(resource, cluster.namespace)
        try:
            await cluster.api.request("POST", path, body=body, params={"dryRun": "All"})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            await _find(cluster, resource, body, inputs.name)


async def _check_names(cluster: Cluster, inputs: ServiceInputs) -> None:
    """Refuses services whose Service, which JobSet makes, has the name of a page's."""

    async def jobset(name: str) -> Object | None:
        return await cluster.api.find(item("jobsets", cluster.namespace, name))

    name = inputs.name
    owner = name.removesuffix(_SUFFIX)
    if owner not in ("", name) and (found := await jobset(owner)) is not None and has_page(found):
        raise InvalidRequestError(
            "NAME", name, f"another name: the page of the service {owner} has it"
        )
    if inputs.page is not None and await jobset(page_name(name)) is not None:
        raise InvalidRequestError(
            "NAME",
            name,
            f"with --ui, another name: a service {page_name(name)} has that of the page",
        )


async def ensure_page(cluster: Cluster, inputs: ServiceInputs) -> bool:
    """Creates the page of a service, or makes it as the inputs want it; does nothing without one.

    The caller has created or found the service's JobSet: what is there is its own, or left by an
    earlier one. What was changed by hand on objects whose inputs stay the same remains.

    Returns:
      Whether anything was created or changed.

    Raises:
      InvalidRequestError: An object of that name belongs to something else.
    """
    has_changed = False
    for resource, body in page_of_service(inputs).items():
        sent = _with_record(body)
        try:
            await _create(cluster, resource, sent)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            has_changed |= await _change(cluster, resource, sent, inputs.name)
        else:
            has_changed = True
    return has_changed


async def settle_page(cluster: Cluster, jobset: Object, after: ServiceInputs) -> bool:
    """Gives a service the page of its new inputs, or takes the page of its JobSet away.

    Returns:
      Whether anything was created, changed or deleted.
    """
    if after.page is not None:
        has_changed = await ensure_page(cluster, after)
        # Other images need other rights.
        unwanted = [one for one in _RESOURCES if one not in page_of_service(after)]
        return await delete_page(cluster, after.name, unwanted) or has_changed
    # (An operator may not read what services without a page have no need of.)
    return has_page(jobset) and await delete_page(cluster, after.name)


async def change_page(cluster: Cluster, jobset: Object, after: ServiceInputs) -> bool:
    """Does the same for a service that goes on, and records it in its JobSet."""
    if after.page is not None:
        await check_page(cluster, after)
    has_changed = await settle_page(cluster, jobset, after)
    text = None if after.page is None else page_text(after.page)
    if text == (jobset["metadata"].get("annotations") or {}).get(names.ANNOTATION_PAGE):
        return has_changed
    annotations = {names.ANNOTATION_PAGE: text}
    patch = {"metadata": {"uid": jobset["metadata"]["uid"], "annotations": annotations}}
    await cluster.api.patch(item("jobsets", cluster.namespace, after.name), patch)
    return True


async def delete_page(
    cluster: Cluster, service: str, resources: Sequence[str] = _RESOURCES
) -> bool:
    """Deletes the page of a service, or some of its objects; returns False if there is none.

    Raises:
      AccessDenied: The user may not read or delete some of its objects, which the text names; the
        others are deleted.
    """
    has_deleted = False
    denied: dict[str, AccessDenied] = {}
    for resource in resources:
        path = item(resource, cluster.namespace, page_name(service))
        try:
            found = await cluster.api.find(path)
            if found is not None and names.labels_of(found).get(names.LABEL_SERVICE) == service:
                has_deleted |= await cluster.api.delete(path, uid=found["metadata"]["uid"])
        except AccessDenied as error:
            denied[resource] = error
    if denied:
        [first, *_] = denied.values()
        left = ", ".join(f"{resource} {page_name(service)}" for resource in denied)
        message = f"of the page of {service} these may be left: {left}: {first.message}"
        raise dataclasses.replace(first, message=message) from first
    return has_deleted


async def _create(cluster: Cluster, resource: str, body: dict[str, Any]) -> None:
    await cluster.api.request("POST", collection(resource, cluster.namespace), body=body)


async def _find(
    cluster: Cluster, resource: str, body: dict[str, Any], service: str
) -> Object | None:
    """Returns an object of the page; raises InvalidRequestError if it is not the service's."""
    return await find_own(
        cluster,
        resource,
        body["metadata"]["name"],
        service=service,
        kind=body["kind"],
        instead="--no-ui",
    )


async def _change(cluster: Cluster, resource: str, sent: dict[str, Any], service: str) -> bool:
    """Makes an object of the page as it was to be created, if its inputs have changed."""
    found = await _find(cluster, resource, sent, service)
    record = sent["metadata"]["annotations"]
    if found is not None and record.items() <= (found["metadata"].get("annotations") or {}).items():
        return False
    path = item(resource, cluster.namespace, sent["metadata"]["name"])
    if found is None or resource not in _PATCHED:
        if found is not None:
            await cluster.api.delete(path, uid=found["metadata"]["uid"])
        await _create(cluster, resource, sent)
        return True
    metadata = {"annotations": record, "uid": found["metadata"]["uid"]}
    await cluster.api.patch(path, {**sent, "metadata": metadata})
    return True


def _with_record(body: dict[str, Any]) -> dict[str, Any]:
    """Returns an object with a record of what was sent, by which changed inputs are recognized."""
    content = {key: value for key, value in body.items() if key != "metadata"}
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    annotations = {names.ANNOTATION_SENT_SPEC: text}
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}
