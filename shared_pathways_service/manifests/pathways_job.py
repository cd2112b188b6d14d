"""Converts a PathwaysJob to a JobSet, as its public controller does, for clusters without it.

docs/pathways_job.md lists the fields, and the differences from the controller.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shared_pathways_service import constants
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests import jobset_parts as parts
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests import sidecar_parts as sidecars
from shared_pathways_service.manifests.image_names import is_ours, proxy_image_for
from shared_pathways_service.manifests.pathways_job_spec import (
    COLOCATED,
    PROXY,
    RESOURCE_MANAGER,
    SIDECAR,
    WORKER,
    PathwaysJob,
    read_pathways_job,
)
from shared_pathways_service.manifests.pod_parts import INSECURE_CREDENTIALS, env, toleration

__all__ = ["render_pathways_job"]

#: Tolerated failures of each host if slices are not elastic.
_RESTARTS_OF_A_HOST: Final = 4
_PROXY_LIMITS: Final = {"cpu": "16", "memory": "100G"}
_TPU_TAINT: Final = "google.com/tpu:NoSchedule"


def render_pathways_job(manifest: object) -> dict[str, Any]:
    """Returns the JobSet of a PathwaysJob's manifest.

    Raises:
      InvalidRequestError: A field is unknown, is missing or has a wrong value; ``field`` is its
        path. Or the job requests a feature that its images do not have.
    """
    job = read_pathways_job(manifest)
    if job.collects_metrics:
        for part in (RESOURCE_MANAGER, PROXY, WORKER):
            if is_ours(image := _image(job, part)):
                expected = f"false with the image {image}, which has no such flag"
                raise InvalidRequestError(
                    "spec.controller.enableMetricsCollection", value=True, expected=expected
                )
    metadata: dict[str, Any] = {"name": job.name}
    if job.namespace:
        metadata["namespace"] = job.namespace
    metadata |= _without_empty(labels=dict(job.labels), annotations=dict(job.annotations))
    spec: dict[str, Any] = {
        "coordinator": dict(parts.COORDINATOR),
        "startupPolicy": dict(parts.STARTUP_POLICY),
        "failurePolicy": {"maxRestarts": job.max_restarts},
    }
    if job.template is not None:
        # The end of a head without a program must not complete the job.
        spec["successPolicy"] = dict(parts.SUCCESS_POLICY)
    spec["replicatedJobs"] = [_head_job(job), _worker_job(job)]
    return {
        "apiVersion": parts.API_VERSION,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": spec,
    }


def _head_job(job: PathwaysJob) -> dict[str, Any]:
    given: Mapping[str, Any] = (job.template or {}).get("metadata") or {}
    annotations = dict(job.annotations)
    if job.mode != COLOCATED:
        annotations[parts.EXCLUSIVE] = parts.HEAD_TOPOLOGY
    on_pod = _without_empty(
        labels=dict(given.get("labels") or {}),
        annotations={**(given.get("annotations") or {}), **annotations},
    )
    template = {**({"metadata": on_pod} if on_pod else {}), "spec": _head_pod(job)}
    on_job = _without_empty(annotations=annotations)
    return {
        "name": names.HEAD_JOB,
        "replicas": 1,
        "template": {
            **({"metadata": on_job} if on_job else {}),
            "spec": {
                "backoffLimit": 0,
                "completions": 1,
                "parallelism": 1,
                "template": template,
            },
        },
    }


def _head_pod(job: PathwaysJob) -> dict[str, Any]:
    if job.template is None:
        pod: dict[str, Any] = {"containers": [_rm_container(job), _proxy_container(job)]}
    else:
        pod = copy.deepcopy(dict(job.template["spec"]))
        sidecars = [
            {**container, "restartPolicy": "Always"}
            for container in (_rm_container(job), _proxy_container(job))
        ]
        pod["initContainers"] = [*(pod.get("initContainers") or ()), *sidecars]
        for container in pod["containers"]:
            if container["name"] == job.main_container:
                container["env"] = _with_variables(container.get("env") or (), _jax_variables(job))
    pod |= parts.HOST_NETWORK
    if job.mode == COLOCATED:
        pod["nodeSelector"] = _node_selector(job)
        # It requests no TPUs itself, so admission does not add this toleration.
        tolerated = toleration(_TPU_TAINT)
        given = list(pod.get("tolerations") or ())
        pod["tolerations"] = given if tolerated in given else [*given, tolerated]
    return pod


def _with_variables(
    given: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Removes earlier duplicates of variables: the last value applies in any case."""
    replaced = {variable["name"] for variable in added}
    return [*(variable for variable in given if variable["name"] not in replaced), *added]


def _jax_variables(job: PathwaysJob) -> list[dict[str, Any]]:
    target = f"grpc://$(PATHWAYS_HEAD):{constants.PROXY_PORT}"
    variables = [
        parts.head_variable(),
        env("JAX_PLATFORMS", "proxy"),
        env("XCLOUD_ENVIRONMENT", "GCP"),
        {"name": "JAX_BACKEND_TARGET", "value": target},
    ]
    if is_ours(_image(job, PROXY)):
        variables.append(env(INSECURE_CREDENTIALS, "true"))
    return variables


def _rm_container(job: PathwaysJob) -> dict[str, Any]:
    variables = parts.rm_variables()
    if is_ours(_image(job, RESOURCE_MANAGER)):
        # Beside a program it is a sidecar, whose exit code does not matter.
        variables += parts.bind_variables(stops=job.template is None)
    return _container(
        job,
        RESOURCE_MANAGER,
        name=names.RM_CONTAINER,
        arguments=parts.rm_arguments({job.workers.kind: job.workers.slices}, job.directory),
        variables=variables,
        ports=parts.RM_PORTS,
        resources={"limits": dict(parts.RM_LIMITS)},
    )


def _proxy_container(job: PathwaysJob) -> dict[str, Any]:
    arguments = [
        f"--server_port={constants.PROXY_PORT}",
        parts.rm_flag(),
        *parts.scratch(job.directory),
    ]
    variables = [parts.head_variable()]
    if is_ours(_image(job, PROXY)):
        slices = ",".join([str(job.workers.kind)] * job.workers.slices)
        arguments.append(f"--virtual_slices={slices}")
        # It starts before the workers do, and no other proxy requests their slices.
        variables += [*parts.bind_variables(stops=False), env("SPS_QUEUE_TIMEOUT_S", "inf")]
    last = [f"--num_elastic_slices={job.elastic_slices}"] if job.elastic_slices else []
    return _container(
        job,
        PROXY,
        name=names.PROXY_CONTAINER,
        arguments=arguments,
        last_arguments=last,
        variables=variables,
        ports=parts.PROXY_PORTS,
        resources={"limits": dict(_PROXY_LIMITS)},
    )


def _worker_job(job: PathwaysJob) -> dict[str, Any]:
    workers = job.workers
    pod: dict[str, Any] = {}
    if workers.grace_s is not None:
        pod["terminationGracePeriodSeconds"] = workers.grace_s
    if workers.priority_class:
        pod["priorityClassName"] = workers.priority_class
    if SIDECAR in job.components:
        sidecar = job.component(SIDECAR)
        pod["initContainers"] = [
            sidecars.sidecar_container(
                sidecar.image,
                # (The quotes are part of the value that PathwaysJob's controller writes.)
                address="'0.0.0.0:50051'",
                flags=sidecar.flags,
                variables=sidecar.env,
                mounts=[sidecars.shared_mount()],
            )
        ]
    pod["containers"] = [_worker_container(job)]
    pod["nodeSelector"] = _node_selector(job)
    pod["volumes"] = [sidecars.shared_volume()]
    pod |= parts.HOST_NETWORK
    if job.mode == COLOCATED:
        pod["affinity"] = _beside_each_other(job.name)
    return {
        "name": "worker",
        "replicas": workers.slices,
        "template": {
            "spec": {
                "backoffLimit": _worker_failures(job),
                "completions": workers.kind.hosts,
                "parallelism": workers.kind.hosts,
                "template": {
                    "metadata": {"annotations": {parts.EXCLUSIVE: parts.WORKER_TOPOLOGY}},
                    "spec": pod,
                },
            },
        },
    }


def _worker_failures(job: PathwaysJob) -> int:
    restarts = job.workers.max_slice_restarts if job.elastic_slices else 0
    return job.workers.kind.hosts * (restarts or _RESTARTS_OF_A_HOST)


def _worker_container(job: PathwaysJob) -> dict[str, Any]:
    variables = parts.worker_variables()
    if is_ours(_image(job, WORKER)):
        variables += parts.own_worker_variables(job.workers.kind)
    container = _container(
        job,
        WORKER,
        name=names.WORKER_CONTAINER,
        arguments=[
            f"--server_port={constants.WORKER_PORT}",
            parts.rm_flag(),
            *parts.scratch(job.directory),
        ],
        variables=variables,
        ports=parts.WORKER_PORTS,
        resources=parts.tpu_limits(job.workers.kind),
    )
    return {**container, "volumeMounts": [sidecars.shared_mount()]}


def _beside_each_other(name: str) -> dict[str, Any]:
    """Returns the affinity by which a slice's pods share its nodes only with their head."""

    def term(*expressions: dict[str, Any]) -> dict[str, Any]:
        return {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchExpressions": [*expressions]},
                    "topologyKey": parts.WORKER_TOPOLOGY,
                }
            ]
        }

    def expression(operator: str) -> dict[str, Any]:
        return {"key": names.LABEL_JOBSET, "operator": operator, "values": [name]}

    return {
        "podAffinity": term(expression("In")),
        "podAntiAffinity": term(expression("NotIn"), {"key": "job-name", "operator": "Exists"}),
    }


def _container(
    job: PathwaysJob,
    part: str,
    *,
    name: str,
    arguments: Sequence[str],
    last_arguments: Sequence[str] = (),
    variables: Sequence[Mapping[str, Any]],
    ports: Sequence[int],
    resources: Mapping[str, Any],
) -> dict[str, Any]:
    component = job.component(part)
    if job.collects_metrics:
        arguments = [*arguments, "--enable_metrics_collection=true"]
    return {
        "name": name,
        "image": _image(job, part),
        "imagePullPolicy": "Always",
        "args": [*arguments, *component.flags, *last_arguments],
        "env": _with_variables(variables, component.env),
        "ports": parts.container_ports(ports),
        "resources": dict(resources),
    }


def _image(job: PathwaysJob, part: str) -> str:
    if image := job.component(part).image:
        return image
    server = f"{parts.SERVER_REPOSITORY}:{job.version}"
    return proxy_image_for(server) if part == PROXY else server


def _node_selector(job: PathwaysJob) -> dict[str, str]:
    return {**job.workers.node_selector, **parts.tpu_node_selector(job.workers.kind)}


def _without_empty(**fields: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
