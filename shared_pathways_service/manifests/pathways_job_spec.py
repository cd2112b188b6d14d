"""Reads a PathwaysJob, and checks its fields.

Names, defaults and limits are those of the public API ``pathways-job.pathways.domain/v1``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from shared_pathways_service.api.instances import MAX_SLICES
from shared_pathways_service.api.request_fields import check_bucket, check_image
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.fields import Fields
from shared_pathways_service.manifests.jobset_parts import check_jobset_name
from shared_pathways_service.manifests.machine_types import slice_type

__all__ = [
    "COLOCATED",
    "PROXY",
    "RESOURCE_MANAGER",
    "SIDECAR",
    "WORKER",
    "PathwaysJob",
    "is_pathways_job",
    "read_pathways_job",
]

_KIND: Final = "PathwaysJob"

#: Names of the parts in `customComponents`.
RESOURCE_MANAGER: Final = "pathways_server"
WORKER: Final = "worker"
PROXY: Final = "proxy_server"
SIDECAR: Final = "colocated_python_sidecar"
_COMPONENTS: Final = (RESOURCE_MANAGER, WORKER, PROXY, SIDECAR)

#: Deployment modes: the head on a separate node, or on the workers' nodes.
_SEPARATE: Final = "default"
COLOCATED: Final = "colocate_head_with_workers"

_INT32: Final = 2**31 - 1
#: Fields of an object's metadata; those that the API server added are ignored.
_METADATA: Final = (
    "name",
    "namespace",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
_SPEC: Final = (
    "maxRestarts",
    "pathwaysDir",
    "pathwaysVersion",
    "workers",
    "controller",
    "customComponents",
)
_WORKERS: Final = (
    "type",
    "topology",
    "numSlices",
    "maxSliceRestarts",
    "terminationGracePeriodSeconds",
    "priorityClassName",
    "nodeSelector",
)
_CONTROLLER: Final = (
    "deploymentMode",
    "elasticSlices",
    "enableMetricsCollection",
    "mainContainerName",
    "template",
)
#: The note of `kubectl apply` about the PathwaysJob, which does not apply to the JobSet.
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workers:
    """The requested slices of a PathwaysJob.

    Attributes:
      max_slice_restarts: Tolerated failures of each host of a slice if the job is elastic; 0: the
        same number as without elasticity.
      grace_s: Seconds from SIGTERM to SIGKILL; None: Kubernetes' default.
      node_selector: Labels that nodes must have in addition to those of the slice's type.
    """

    kind: InstanceType
    slices: int
    max_slice_restarts: int
    grace_s: int | None
    priority_class: str
    node_selector: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Component:
    """The customization of one part.

    Attributes:
      image: Empty: the default image.
      flags: Further arguments.
      env: Further variables, in the form of a container's.
    """

    image: str = ""
    flags: tuple[str, ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathwaysJob:
    """A PathwaysJob with valid fields.

    Attributes:
      namespace: Empty: the namespace in which it is created.
      max_restarts: The number of restarts of the whole JobSet.
      directory: ``gs://…`` for scratch data; empty: none.
      version: The tag of the default images.
      mode: `COLOCATED`, or the head has a separate node.
      elastic_slices: The number of slices that may be missing.
      main_container: The name of the template's container that runs JAX.
      template: The user's pod template; None: resource manager and proxy only.
      components: Customizations by part.
    """

    name: str
    workers: Workers
    namespace: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_restarts: int = 0
    directory: str = ""
    version: str = "latest"
    mode: str = _SEPARATE
    elastic_slices: int = 0
    collects_metrics: bool = False
    main_container: str = "main"
    template: Mapping[str, Any] | None = None
    components: Mapping[str, Component] = dataclasses.field(default_factory=dict)

    def component(self, part: str) -> Component:
        """Returns the customization of a part."""
        return self.components.get(part, Component())


def is_pathways_job(manifest: object) -> bool:
    """Whether a manifest has the kind PathwaysJob, valid or not."""
    return isinstance(manifest, Mapping) and manifest.get("kind") == _KIND


def read_pathways_job(manifest: object) -> PathwaysJob:
    """Reads a manifest of kind PathwaysJob.

    Raises:
      InvalidRequestError: A field is unknown, is missing or has a wrong value; ``field`` is its
        path, e.g. ``spec.workers[0].topology``.
    """
    top = Fields("", manifest, ("apiVersion", "kind", "metadata", "spec", "status"))
    top.choice("apiVersion", ("pathways-job.pathways.domain/v1",))
    top.choice("kind", (_KIND,))
    metadata = top.object("metadata", _METADATA)
    spec = top.object("spec", _SPEC)
    annotations = metadata.mapping("annotations")
    annotations.pop(_APPLIED, None)
    workers = _workers(spec)
    return PathwaysJob(
        name=check_jobset_name(metadata.any("name"), field=metadata.path("name")),
        namespace=metadata.text("namespace"),
        labels=metadata.mapping("labels"),
        annotations=annotations,
        max_restarts=spec.number("maxRestarts", 0, low=0, high=_INT32),
        directory=check_bucket(spec.any("pathwaysDir"), field=spec.path("pathwaysDir")) or "",
        version=_version(spec),
        workers=workers,
        components=_components(spec),
        **_controller(spec, workers.slices),
    )


def _version(spec: Fields) -> str:
    version = spec.text("pathwaysVersion", "latest")
    path = spec.path("pathwaysVersion")
    if ":" in version or "/" in version:
        raise InvalidRequestError(path, version, "an image's tag, e.g. jax-0.9.0")
    check_image(f"image:{version}", field=path)
    return version


def _workers(spec: Fields) -> Workers:
    items = spec.items("workers")
    if len(items) != 1:
        value = spec.any("workers")
        raise InvalidRequestError(spec.path("workers"), value, "a list of one item")
    fields = Fields(*items[0], _WORKERS)
    grace = "terminationGracePeriodSeconds"
    return Workers(
        kind=slice_type(
            fields.any("type"),
            fields.any("topology"),
            type_field=fields.path("type"),
            topology_field=fields.path("topology"),
        ),
        slices=fields.number("numSlices", None, low=1, high=MAX_SLICES),
        max_slice_restarts=fields.number("maxSliceRestarts", 1, low=0, high=_INT32),
        grace_s=fields.number(grace, None, low=0) if fields.has(grace) else None,
        priority_class=fields.text("priorityClassName"),
        node_selector=fields.mapping("nodeSelector"),
    )


def _controller(spec: Fields, slices: int) -> dict[str, Any]:
    fields = spec.object("controller", _CONTROLLER)
    main = fields.text("mainContainerName", "main")
    template = _template(fields, main) if fields.has("template") else None
    return {
        "mode": fields.choice("deploymentMode", (_SEPARATE, COLOCATED)),
        # If all slices may be missing, the program could not run.
        "elastic_slices": fields.number("elasticSlices", 0, low=0, high=slices - 1),
        "collects_metrics": fields.flag("enableMetricsCollection"),
        "main_container": main,
        "template": template,
    }


def _template(controller: Fields, main: str) -> Mapping[str, Any]:
    """Reads the user's pod, and checks only the fields that are changed here."""
    template = controller.object("template", ("metadata", "spec"))
    value: Mapping[str, Any] = controller.any("template")
    if not isinstance(template.any("spec"), Mapping):
        raise InvalidRequestError(template.path("spec"), template.any("spec"), "a pod's spec")
    spec = Fields(template.path("spec"), template.any("spec"), template.any("spec"))
    if template.has("metadata"):
        metadata = template.object("metadata", _METADATA)
        metadata.mapping("labels")
        metadata.mapping("annotations")
    found = []
    for field in ("initContainers", "containers"):
        for path, item in spec.items(field):
            name = item.get("name") if isinstance(item, Mapping) else None
            if not isinstance(name, str):
                raise InvalidRequestError(path, item, "a container with a name")
            if name in (names.RM_CONTAINER, names.PROXY_CONTAINER):
                expected = "another name: the head already has a container of this name"
                raise InvalidRequestError(f"{path}.name", name, expected)
            if field == "containers":
                found.append(name)
                _check_env(path, item)
    if not found:
        path = spec.path("containers")
        raise InvalidRequestError(path, spec.any("containers"), "at least one container")
    if main not in found:
        expected = f"a container of the template: {', '.join(found)}"
        raise InvalidRequestError(controller.path("mainContainerName"), main, expected)
    return value


def _components(spec: Fields) -> dict[str, Component]:
    components: dict[str, Component] = {}
    for path, item in spec.items("customComponents"):
        fields = Fields(path, item, ("componentType", "image", "customFlags", "customEnv"))
        part = fields.choice("componentType", _COMPONENTS)
        if part in components:
            raise InvalidRequestError(fields.path("componentType"), part, "each part once")
        if part == SIDECAR and not fields.has("image"):
            raise InvalidRequestError(fields.path("image"), None, "an image: there is no default")
        _check_env(path, item, "customEnv")
        components[part] = Component(
            image=_image(fields),
            flags=tuple(fields.texts("customFlags")),
            env=tuple(variable for _, variable in fields.items("customEnv")),
        )
    return components


def _image(component: Fields) -> str:
    if not component.has("image"):
        return ""
    return check_image(component.any("image"), field=component.path("image"))


def _check_env(path: str, item: Mapping[str, Any], field: str = "env") -> None:
    for place, variable in Fields(path, item, item).items(field):
        fields = Fields(place, variable, ("name", "value", "valueFrom"))
        if not isinstance(fields.any("name"), str):
            raise InvalidRequestError(fields.path("name"), fields.any("name"), "a variable's name")
        if not isinstance(fields.any("value"), str | None):
            expected = "a text; numbers and true or false need quotes"
            raise InvalidRequestError(fields.path("value"), fields.any("value"), expected)
