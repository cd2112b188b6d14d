"""Builds the JobSet of a Shared Pathways Service: a head with the resource manager, and workers.

Flags, ports, variables and the form of the JobSet are those of upstream's builder (pathwaysutils
0.1.13) and of the public documentation of Pathways on Cloud.
``tests/manifests/upstream_jobset.toml`` lists each deliberate difference with its reason. The main
one: a head that dies restarts in place, and workers and proxies report the lost state to our
resource manager.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from shared_pathways_service import constants
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.manifests import gcsfuse_parts as gcsfuse
from shared_pathways_service.manifests import jobset_parts as parts
from shared_pathways_service.manifests import lease_parts as lease
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests import sidecar_parts as sidecars
from shared_pathways_service.manifests import state_parts as state
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.page_inputs import page_text
from shared_pathways_service.manifests.page_parts import page_objects
from shared_pathways_service.manifests.pod_parts import INSECURE_SERVERS, env, literal, restricted
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.verified_users import account_parts as account
from shared_pathways_service.manifests.verified_users.program_parts import programs_claim
from shared_pathways_service.manifests.worker_nodes import WorkerNodes, worker_nodes

__all__ = [
    "page_of_service",
    "record_spec",
    "service_address",
    "service_jobset",
    "service_objects",
]

#: Tolerated failures of the head, whose failure ends the whole service: practically unlimited.
_HEAD_FAILURES: Final = 1_000_000
#: The end of the log is in the pod's status, where it explains a crash.
_LOG_AS_MESSAGE: Final = "FallbackToLogsOnError"


def service_address(name: str) -> str:
    """Returns ``host:port`` of the resource manager of a service."""
    return f"{name}-{names.HEAD_JOB}-0-0.{name}:{constants.RESOURCE_MANAGER_PORT}"


def service_objects(inputs: ServiceInputs) -> list[dict[str, Any]]:
    """Returns all objects of a service, in the order of their creation."""
    objects: list[dict[str, Any]] = []
    if inputs.state_size:
        claim = state.state_claim(
            inputs.name,
            inputs.namespace,
            size=inputs.state_size,
            storage_class=inputs.storage_class,
        )
        objects.append(claim)
    if inputs.lease:
        objects += lease.lease_objects(inputs.name, inputs.namespace).values()
    return [*objects, *page_of_service(inputs).values(), service_jobset(inputs)]


def page_of_service(inputs: ServiceInputs) -> dict[str, dict[str, Any]]:
    """Returns the objects of a service's page by resource; none without a page."""
    if inputs.page is None:
        return {}
    return page_objects(
        inputs.name,
        inputs.namespace,
        inputs.page,
        image=inputs.image,
        address=service_address(inputs.name),
    )


def service_jobset(inputs: ServiceInputs) -> dict[str, Any]:
    """Returns the JobSet (jobset.x-k8s.io/v1alpha2)."""
    workers = [
        _worker_job(inputs, f"worker-{kind.family}-{kind.topology}" if number else "worker", kind)
        for number, kind in enumerate(inputs.counts)
    ]
    spec: dict[str, Any] = {
        "coordinator": dict(parts.COORDINATOR),
        # Workers and proxies may look up the head before it is ready.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "startupPolicy": dict(parts.STARTUP_POLICY),
        "successPolicy": dict(parts.SUCCESS_POLICY),
        "replicatedJobs": [_head_job(inputs), *workers],
    }
    if inputs.max_restarts:
        spec["failurePolicy"] = {
            "restartStrategy": "Recreate",
            "maxRestarts": inputs.max_restarts,
        }
    metadata: dict[str, Any] = {
        "name": inputs.name,
        "namespace": inputs.namespace,
        "labels": {**inputs.labels, names.LABEL_MANAGED_BY: names.MANAGED_BY},
    }
    if annotations := _annotations(inputs):
        metadata["annotations"] = annotations
    return {
        "apiVersion": parts.API_VERSION,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": spec,
    }


def record_spec(jobset: dict[str, Any]) -> None:
    """Records the spec in an annotation, so that later changes of the JobSet can be recognized."""
    annotations = jobset["metadata"].setdefault("annotations", {})
    spec = json.dumps(jobset["spec"], separators=(",", ":"), sort_keys=True)
    annotations[names.ANNOTATION_SENT_SPEC] = spec


def _annotations(inputs: ServiceInputs) -> dict[str, str]:
    """Returns the inputs that the JobSet's spec does not show."""
    limit = "" if inputs.max_keep_for_s is None else str(inputs.max_keep_for_s)
    texts = {
        names.ANNOTATION_MAX_KEEP_FOR: limit,
        names.ANNOTATION_STATE_SIZE: inputs.state_size,
        names.ANNOTATION_STORAGE_CLASS: inputs.storage_class,
        names.ANNOTATION_AUDIENCE: _audience(inputs) if inputs.verify_users else "",
        names.ANNOTATION_PROGRAMS: programs_claim(inputs.name) if inputs.compiled_programs else "",
        names.ANNOTATION_ENGINE: inputs.engine if inputs.has_executors else "",
        names.ANNOTATION_PLATFORM: "" if inputs.platform == constants.CPU else inputs.platform,
        names.ANNOTATION_PAGE: "" if inputs.page is None else page_text(inputs.page),
        names.ANNOTATION_COLOCATED_PYTHON: "true" if inputs.allow_colocated_python else "",
    }
    return {name: text for name, text in texts.items() if text}


def _audience(inputs: ServiceInputs) -> str:
    """Returns the audience of tokens for this service's resource manager, and for no other."""
    return f"{inputs.name}.{inputs.namespace}.sps.dev"


def _head_job(inputs: ServiceInputs) -> dict[str, Any]:
    variables = parts.rm_variables()
    if is_ours(inputs.image):
        variables += parts.bind_variables()
        if inputs.spares:
            variables.append(env("SPS_NUM_SPARES", str(inputs.spares)))
        if inputs.has_executors:
            variables.append(parts.engine_variable(inputs.engine))
    container: dict[str, Any] = {
        "name": names.RM_CONTAINER,
        **_image(inputs),
        "args": [
            *parts.rm_arguments(inputs.counts, inputs.gcs_bucket),
            *map(literal, inputs.server_args),
        ],
        "env": variables,
        "ports": parts.container_ports(parts.RM_PORTS),
        "terminationMessagePolicy": _LOG_AS_MESSAGE,
    }
    if not is_ours(inputs.image):
        container["resources"] = {"limits": dict(parts.RM_LIMITS)}
    pod = _pod(inputs)
    if inputs.state_size:
        pod["securityContext"] = dict(state.SECURITY)
        pod["volumes"] = [state.state_volume(inputs.name)]
        container["env"].append(state.state_variable())
        container["volumeMounts"] = [state.state_mount()]
    if inputs.lease or inputs.verify_users:
        pod["serviceAccountName"] = lease.account_name(inputs.name) if inputs.lease else "default"
        pod["automountServiceAccountToken"] = False
        pod["volumes"] = [*pod.get("volumes", ()), account.account_volume()]
        container["env"].append(account.account_variable())
        container["volumeMounts"] = [*container.get("volumeMounts", ()), account.account_mount()]
    if inputs.lease:
        container["env"].append(lease.lease_variable(inputs.name))
    if inputs.verify_users:
        container["env"].append(env("SPS_IDENTITY_AUDIENCE", _audience(inputs)))
    return _replicated_job(
        names.HEAD_JOB,
        replicas=1,
        pods=1,
        failures=_HEAD_FAILURES,
        exclusive=parts.HEAD_TOPOLOGY,
        template={"spec": {**pod, "containers": [_with_credentials(inputs, container)]}},
    )


def _worker_job(inputs: ServiceInputs, name: str, kind: InstanceType) -> dict[str, Any]:
    nodes = worker_nodes(inputs, kind)
    return _replicated_job(
        name,
        replicas=inputs.counts[kind],
        pods=kind.hosts,
        failures=min(kind.hosts * inputs.max_slice_restarts, 2**31 - 1),
        exclusive=nodes.exclusive,
        template=_worker_template(inputs, kind, nodes),
    )


def _worker_template(
    inputs: ServiceInputs, kind: InstanceType, nodes: WorkerNodes
) -> dict[str, Any]:
    pod = {**_pod(inputs), **nodes.pod}
    container = _worker_container(inputs, kind, nodes)
    containers, volumes = [container], [*pod.get("volumes", ())]
    if is_ours(inputs.image):
        # Tenants may run code here, and our workers need neither the API server nor capabilities.
        pod["automountServiceAccountToken"] = False
        container["securityContext"] = restricted()
    else:
        # Google's TPU runtime keeps its lock and its logs in the node's /tmp.
        container["volumeMounts"] = [sidecars.shared_mount()]
        volumes.append(sidecars.shared_volume())
    if inputs.sidecar_image:
        sidecar = sidecars.sidecar_container(
            inputs.sidecar_image,
            # Without buffering, so that the last lines of a crashed process are not lost.
            variables=[sidecars.memory_variable(), env("PYTHONUNBUFFERED", "1")],
            mounts=[sidecars.shared_mount(), sidecars.memory_mount()],
        )
        pod["initContainers"] = [sidecar]
        container["volumeMounts"].append(sidecars.memory_mount())
        volumes.append(sidecars.memory_volume())
        containers.append(sidecar)
    if inputs.gcsfuse:
        volumes.append(gcsfuse.bucket_volume(inputs.gcs_bucket))
        for one in containers:
            one["volumeMounts"] = [*one.get("volumeMounts", ()), gcsfuse.bucket_mount()]
    if volumes:
        pod["volumes"] = volumes
    pod["containers"] = [_with_credentials(inputs, container)]
    if not inputs.gcsfuse:
        return {"spec": pod}
    return {"metadata": {"annotations": dict(gcsfuse.ANNOTATIONS)}, "spec": pod}


def _with_credentials(inputs: ServiceInputs, container: dict[str, Any]) -> dict[str, Any]:
    if not inputs.insecure_server_credentials:
        return container
    return {**container, "env": [*container["env"], env(*INSECURE_SERVERS)]}


def _worker_container(
    inputs: ServiceInputs, kind: InstanceType, nodes: WorkerNodes
) -> dict[str, Any]:
    return {
        "name": names.WORKER_CONTAINER,
        **_image(inputs),
        "args": [
            f"--server_port={constants.WORKER_PORT}",
            parts.rm_flag(),
            *parts.scratch(inputs.gcs_bucket),
            *([sidecars.memory_flag()] if inputs.sidecar_image else ()),
            *map(literal, inputs.worker_args),
        ],
        "env": [
            *parts.worker_variables(),
            *([sidecars.memory_variable()] if inputs.sidecar_image else ()),
            *(_worker_variables(inputs, kind) if is_ours(inputs.image) else ()),
            *nodes.variables,
        ],
        "ports": parts.container_ports(parts.WORKER_PORTS),
        "terminationMessagePolicy": _LOG_AS_MESSAGE,
        **nodes.container,
    }


def _image(inputs: ServiceInputs) -> dict[str, str]:
    # Google's tags are rebuilt each day; another image may exist on the nodes only.
    always = {} if is_ours(inputs.image) else {"imagePullPolicy": "Always"}
    return {"image": inputs.image, **always}


def _worker_variables(inputs: ServiceInputs, kind: InstanceType) -> list[dict[str, Any]]:
    variables = parts.own_worker_variables(kind, executors=inputs.has_executors)
    if inputs.platform != constants.CPU:
        variables.append(parts.platform_variable(inputs.platform))
    if inputs.allow_colocated_python:
        variables.append(env("SPS_COLOCATED_PYTHON", "true"))
    if len(inputs.counts) > 1:
        # Job indices start at 0 in each type, but slices need unique names.
        name = f"{kind.family}-{kind.topology}-$(MEGASCALE_SLICE_ID)"
        variables.append({"name": "SPS_SLICE_ID", "value": name})
    return variables


def _pod(inputs: ServiceInputs) -> dict[str, Any]:
    # Restarted in place, it is back at once with its address; a new pod waits for a backoff.
    pod: dict[str, Any] = {"restartPolicy": "OnFailure"}
    if inputs.host_network:
        pod |= parts.HOST_NETWORK
    if inputs.priority_class:
        pod["priorityClassName"] = inputs.priority_class
    return pod


def _replicated_job(
    name: str,
    *,
    replicas: int,
    pods: int,
    failures: int,
    exclusive: str,
    template: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "name": name,
        "replicas": replicas,
        "template": {
            **({"metadata": {"annotations": {parts.EXCLUSIVE: exclusive}}} if exclusive else {}),
            "spec": {
                "backoffLimit": failures,
                "completionMode": "Indexed",
                "completions": pods,
                "parallelism": pods,
                "template": dict(template),
            },
        },
    }
