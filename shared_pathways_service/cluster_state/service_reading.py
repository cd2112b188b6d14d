"""Reads the inputs of a service back from its JobSet, so that it can be recreated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests import gcsfuse_parts as gcsfuse
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.lease_parts import LEASE_VARIABLE
from shared_pathways_service.manifests.page_inputs import page_from_text
from shared_pathways_service.manifests.service_inputs import OWN_FLAGS, ServiceInputs
from shared_pathways_service.manifests.sidecar_parts import SIDECAR_CONTAINER

__all__ = ["difference", "manifest_of", "read_inputs", "recorded_spec"]

Object = Mapping[str, Any]


def read_inputs(jobset: Object, service: Service, *, has_page: bool = True) -> ServiceInputs:
    """Returns the inputs for which `service_jobset` makes such a JobSet.

    The result of `service_jobset` may differ: the JobSet may have been changed or written by hand.
    `difference` shows how.

    Raises:
      InvalidRequestError: No inputs make such a JobSet.
    """
    if not service.instances or not service.workers:
        raise InvalidRequestError(
            "NAME",
            service.name,
            "a service whose JobSet names its slices, as those of `sps deploy` do",
        )
    pods = {str(job["name"]): job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]}
    head = pods[names.HEAD_JOB]["template"]
    workers = pods[service.workers[0].name]
    manager = _container(head, names.RM_CONTAINER)
    worker = _container(workers["template"], names.WORKER_CONTAINER)
    sidecar = _container(workers["template"], SIDECAR_CONTAINER)
    metadata = jobset["metadata"]
    own = (names.LABEL_MANAGED_BY, names.LABEL_SESSION)
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k not in own}
    annotations = metadata.get("annotations") or {}
    template = workers["template"].get("metadata") or {}
    return ServiceInputs(
        name=service.name,
        namespace=service.namespace,
        instances=dict(service.instances),
        gcs_bucket=service.gcs_scratch_location.replace("$$", "$"),
        image=service.image,
        sidecar_image=str(sidecar.get("image") or ""),
        spares=_spares(manager),
        max_slice_restarts=int(workers.get("backoffLimit") or 0) // service.workers[0].hosts,
        max_restarts=int((jobset["spec"].get("failurePolicy") or {}).get("maxRestarts") or 0),
        priority_class=str(head["spec"].get("priorityClassName") or ""),
        server_args=_more_arguments(manager),
        worker_args=_more_arguments(worker),
        gcsfuse=bool(gcsfuse.ANNOTATIONS.keys() & (template.get("annotations") or {}).keys()),
        host_network=bool(head["spec"].get("hostNetwork")),
        insecure_server_credentials=service.insecure_credentials,
        max_keep_for_s=service.max_keep_for_s,
        lease=bool(_variables(manager).get(LEASE_VARIABLE)),
        state_size=str(annotations.get(names.ANNOTATION_STATE_SIZE) or ""),
        storage_class=str(annotations.get(names.ANNOTATION_STORAGE_CLASS) or ""),
        verify_users=bool(service.audience),
        compiled_programs=bool(service.programs_claim),
        engine=service.engine,
        platform=service.platform,
        allow_colocated_python=service.allows_python,
        page=page_from_text(str(annotations.get(names.ANNOTATION_PAGE) or ""))
        if has_page
        else None,
        labels=labels,
    )


def recorded_spec(jobset: Object) -> Object | None:
    """Returns the spec that `record_spec` recorded; None if there is none, or it is invalid."""
    annotations = jobset["metadata"].get("annotations") or {}
    try:
        spec = json.loads(annotations.get(names.ANNOTATION_SENT_SPEC, ""))
    except ValueError:
        return None
    return spec if isinstance(spec, dict) else None


def manifest_of(jobset: Object) -> dict[str, Any]:
    """Returns the manifest that creates a JobSet again as it is now, changes by hand included.

    It leaves out what the API server sets, and that the JobSet is being drained.
    """
    metadata = jobset["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    annotations.pop(names.ANNOTATION_DRAINING, None)
    return {
        "apiVersion": jobset["apiVersion"],
        "kind": jobset["kind"],
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": dict(metadata.get("labels") or {}),
            "annotations": annotations,
        },
        "spec": jobset["spec"],
    }


def difference(made: object, found: object, path: str = "spec") -> str:
    """Returns the path at which two specifications differ; empty if they do not."""
    if isinstance(made, Mapping) and isinstance(found, Mapping):
        pairs: Iterator[tuple[str, object, object]] = (
            (f"{path}.{key}", made.get(key), found.get(key))
            for key in sorted(made.keys() | found.keys())
        )
    elif isinstance(made, list) and isinstance(found, list) and len(made) == len(found):
        pairs = (
            (f"{path}[{_name_of(one, number)}]", one, other)
            for number, (one, other) in enumerate(zip(made, found, strict=True))
        )
    else:
        return "" if made == found else path
    return next((where for p, a, b in pairs if (where := difference(a, b, p))), "")


def _name_of(item: object, number: int) -> str:
    return str(item["name"] if isinstance(item, Mapping) and "name" in item else number)


def _container(template: Object, name: str) -> Object:
    pod = template["spec"]
    every = [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]
    return next((c for c in every if c.get("name") == name), {})


def _variables(container: Object) -> Mapping[str, Any]:
    return {v.get("name"): v.get("value") for v in container.get("env") or ()}


def _spares(manager: Object) -> int:
    value = str(_variables(manager).get("SPS_NUM_SPARES") or "0")
    return int(value) if value.isdecimal() else 0


def _more_arguments(container: Object) -> Sequence[str]:
    """Returns the arguments that other inputs do not imply."""
    arguments = (str(word) for word in container.get("args") or ())
    return tuple(
        word.replace("$$", "$")
        for word in arguments
        if word.removeprefix("--").partition("=")[0] not in OWN_FLAGS
    )
