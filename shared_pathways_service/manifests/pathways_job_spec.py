"""A PathwaysJob as it is written: which fields it has, and what is right for each.

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
    "API_VERSION",
    "COLOCATED",
    "KIND",
    "PROXY",
    "RESOURCE_MANAGER",
    "SIDECAR",
    "WORKER",
    "Component",
    "PathwaysJob",
    "Workers",
    "is_pathways_job",
    "read_pathways_job",
]

API_VERSION: Final = "pathways-job.pathways.domain/v1"
KIND: Final = "PathwaysJob"

#: What `customComponents` calls the parts.
RESOURCE_MANAGER: Final = "pathways_server"
WORKER: Final = "worker"
PROXY: Final = "proxy_server"
SIDECAR: Final = "colocated_python_sidecar"
_COMPONENTS: Final = (RESOURCE_MANAGER, WORKER, PROXY, SIDECAR)

#: Modes of deployment: the head on a node of its own, or beside the workers.
_SEPARATE: Final = "default"
COLOCATED: Final = "colocate_head_with_workers"

_INT32: Final = 2**31 - 1
#: Of an object's metadata; what the API server has added is passed over.
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
#: What `kubectl apply` noted of the PathwaysJob is not true of the JobSet.
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workers:
    """The slices that a PathwaysJob asks for.

    Attributes:
      kind: Type of each slice.
      slices: How many.
      max_slice_restarts: Failures of each host of a slice that are forgiven where the job is
        elastic; 0: as many as where it is not.
      grace_s: Seconds from being told to end until being killed; None: as Kubernetes has it.
      priority_class: Of the workers' pods; empty: none.
      node_selector: Labels that nodes must have, beside those of the slice's type.
    """

    kind: InstanceType
    slices: int
    max_slice_restarts: int = 1
    grace_s: int | None = None
    priority_class: str = ""
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Component:
    """What differs from the usual in one of the parts.

    Attributes:
      image: Empty: the usual one.
      flags: Further arguments.
      env: Further variables, as a container has them.
    """

    image: str = ""
    flags: tuple[str, ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathwaysJob:
    """A PathwaysJob whose fields are right.

    Attributes:
      name: Its own, and its JobSet's.
      namespace: Empty: wherever it is created.
      max_restarts: How often the whole JobSet is started again.
      directory: ``gs://…`` for scratch data; empty: none.
      version: Tag of the usual images.
      mode: `COLOCATED`, or the head has a node of its own.
      elastic_slices: How many slices may be missing.
      collects_metrics: Whether the servers report metrics.
      main_container: Name of the template's container that runs JAX.
      template: The user's pod, as a pod template; None: resource manager and proxy stand alone.
      components: What differs from the usual, by part.
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
        """Returns what differs from the usual in a part."""
        return self.components.get(part, Component())


def is_pathways_job(manifest: object) -> bool:
    """Whether a manifest is meant for a PathwaysJob, right or wrong."""
    return isinstance(manifest, Mapping) and manifest.get("kind") == KIND


def read_pathways_job(manifest: object) -> PathwaysJob:
    """Reads a manifest of kind PathwaysJob.

    Raises:
      InvalidRequestError: A field is unknown, is missing or has a wrong value; ``field`` is its
        path, e.g. ``spec.workers[0].topology``.
    """
    top = Fields("", manifest, ("apiVersion", "kind", "metadata", "spec", "status"))
    top.choice("apiVersion", (API_VERSION,))
    top.choice("kind", (KIND,))
    metadata = top.object("metadata", _METADATA)
    spec = top.object(
        "spec",
        (
            "maxRestarts",
            "pathwaysDir",
            "pathwaysVersion",
            "workers",
            "controller",
            "customComponents",
        ),
    )
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
    [(path, item)] = items
    fields = Fields(
        path,
        item,
        (
            "type",
            "topology",
            "numSlices",
            "maxSliceRestarts",
            "terminationGracePeriodSeconds",
            "priorityClassName",
            "nodeSelector",
        ),
    )
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
    fields = spec.object(
        "controller",
        (
            "deploymentMode",
            "elasticSlices",
            "enableMetricsCollection",
            "mainContainerName",
            "template",
        ),
    )
    main = fields.text("mainContainerName", "main")
    template = _template(fields, main) if fields.has("template") else None
    return {
        "mode": fields.choice("deploymentMode", (_SEPARATE, COLOCATED)),
        # With all of them missing there is nothing to run on.
        "elastic_slices": fields.number("elasticSlices", 0, low=0, high=slices - 1),
        "collects_metrics": fields.flag("enableMetricsCollection"),
        "main_container": main,
        "template": template,
    }


def _template(controller: Fields, main: str) -> Mapping[str, Any]:
    """Reads the user's pod, of which only what is worked on here is checked."""
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
                expected = "a name of its own: the head has a container of this one"
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
            raise InvalidRequestError(fields.path("image"), None, "an image: there is no usual one")
        _check_env(path, item, "customEnv")
        components[part] = Component(
            image=check_image(fields.any("image"), field=fields.path("image"))
            if fields.has("image")
            else "",
            flags=tuple(fields.texts("customFlags")),
            env=tuple(variable for _, variable in fields.items("customEnv")),
        )
    return components


def _check_env(path: str, item: Mapping[str, Any], field: str = "env") -> None:
    for place, variable in Fields(path, item, item).items(field):
        fields = Fields(place, variable, ("name", "value", "valueFrom"))
        if not isinstance(fields.any("name"), str):
            raise InvalidRequestError(fields.path("name"), fields.any("name"), "a variable's name")
        if not isinstance(fields.any("value"), str | None):
            expected = "a text; numbers and true or false need quotes"
            raise InvalidRequestError(fields.path("value"), fields.any("value"), expected)
