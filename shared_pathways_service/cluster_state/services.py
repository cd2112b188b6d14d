"""Finds services among the JobSets of a namespace, and reads their arguments."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.cluster_state.pods import condition
from shared_pathways_service.constants import CPU, LOCAL_ENGINE, RESOURCE_MANAGER_PORT
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.pod_parts import INSECURE_SERVERS

__all__ = ["Service", "WorkerGroup", "find_service", "flags_of", "read_service"]

_RM_FLAG: Final = "--node_type=resource_manager"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """A replicated job of workers: slices of one type, each with one pod per host.

    Attributes:
      slices: The number of slices that it should have.
      instance_type: e.g. ``tpuv6e:2x2``; empty if it is unknown.
    """

    name: str
    slices: int
    hosts: int
    instance_type: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service:
    """A Shared Pathways Service as its JobSet describes it.

    Attributes:
      name: The JobSet's name.
      address: ``host:port`` of the resource manager, from pods of the namespace.
      instances: Slices by type, from the resource manager's arguments; empty if unknown.
      image: The resource manager's image.
      sidecar_image: The image of the colocated Python sidecars; may be empty.
      gcs_scratch_location: The resource manager's location; may be empty.
      insecure_credentials: Whether its servers use plaintext between each other, so that a proxy
        must do so, too.
      max_keep_for_s: The longest ``keep_for`` of tenants in seconds; None: no limit.
      audience: Of the tokens by which it verifies users; empty: it does not verify them.
      programs_claim: The claim for compiled programs of verified users; empty: there is none.
      engine: Where its tenants' programs run: ``local``, in their proxies, or ``distributed``.
      platform: What executors compute on: ``cpu``, ``cuda`` or ``tpu``.
      allows_python: Whether tenants may run Python on the hosts of executors.
      ended: Why it cannot become ready: the JobSet has ended or is suspended; empty: it can.
      draining: Why it refuses new connections; empty: it accepts them.
    """

    name: str
    namespace: str
    uid: str
    address: str
    instances: Mapping[str, int]
    image: str
    workers: tuple[WorkerGroup, ...]
    sidecar_image: str = ""
    gcs_scratch_location: str = ""
    insecure_credentials: bool = False
    max_keep_for_s: float | None = None
    audience: str = ""
    programs_claim: str = ""
    engine: str = LOCAL_ENGINE
    platform: str = CPU
    allows_python: bool = False
    ended: str = ""
    draining: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it runs our images, which support tokens, queues and holders."""
        return is_ours(self.image)

    @property
    def wanted(self) -> int:
        """The number of slices that it should have."""
        return sum(group.slices for group in self.workers)


def read_service(jobset: Mapping[str, Any]) -> Service | None:
    """Reads a JobSet; returns None without a resource manager: it is not a Pathways service."""
    replicated = (jobset.get("spec") or {}).get("replicatedJobs") or ()
    jobs = {str(job.get("name", "")): job for job in replicated}
    manager = _manager(_pod_spec(jobs.get(names.HEAD_JOB, {})))
    if manager is None:
        return None
    metadata = jobset.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    name = str(metadata.get("name", ""))
    flags = flags_of(manager)
    instances = _instances(flags)
    groups = {name: job for name, job in jobs.items() if names.is_worker_job(name)}
    return Service(
        name=name,
        namespace=str(metadata.get("namespace", "")),
        uid=str(metadata.get("uid", "")),
        address=f"{_host(jobset)}:{flags.get('server_port') or RESOURCE_MANAGER_PORT}",
        instances=instances,
        image=str(manager.get("image", "")),
        workers=tuple(_group(n, job, instances) for n, job in groups.items()),
        sidecar_image=next((i for job in groups.values() if (i := _sidecar(_pod_spec(job)))), ""),
        gcs_scratch_location=flags.get("gcs_scratch_location", ""),
        insecure_credentials=_is_insecure(manager),
        max_keep_for_s=_seconds(annotations.get(names.ANNOTATION_MAX_KEEP_FOR)),
        audience=str(annotations.get(names.ANNOTATION_AUDIENCE) or ""),
        programs_claim=str(annotations.get(names.ANNOTATION_PROGRAMS) or ""),
        engine=str(annotations.get(names.ANNOTATION_ENGINE) or LOCAL_ENGINE),
        platform=str(annotations.get(names.ANNOTATION_PLATFORM) or CPU),
        allows_python=annotations.get(names.ANNOTATION_COLOCATED_PYTHON) == "true",
        ended=_ended(jobset),
        draining=str(annotations.get(names.ANNOTATION_DRAINING) or ""),
    )


def find_service(
    jobsets: Iterable[Mapping[str, Any]], address: str = "", *, namespace: str = ""
) -> Service:
    """Returns the service at an address, or the only service.

    Args:
      jobsets: The JobSets of the namespace.
      address: ``host:port`` of the resource manager, in short or with the cluster's domain.
      namespace: The namespace, for errors.

    Raises:
      ServiceNotFound: There is no such service; or there are several, and no address was given.
    """
    services = [service for jobset in jobsets if (service := read_service(jobset)) is not None]
    candidates = [service.address for service in services]
    where = f" in namespace {namespace}" if namespace else ""
    if address:
        found = [service for service in services if _is_at(service, address)]
        if found:
            # The address as requested: the domain may matter to the caller.
            return dataclasses.replace(found[0], address=address)
        raise ServiceNotFound(
            f"there is no service at {address}{where}; there are {', '.join(candidates) or 'none'}",
            service=address,
            candidates=candidates,
            hint="pathways_service must be the address of a JobSet's resource manager: "
            f"NAME-{names.HEAD_JOB}-0-0.NAME:{RESOURCE_MANAGER_PORT}",
        )
    live = [service for service in services if not service.ended] or services
    if len(live) == 1:
        return live[0]
    if live:
        raise ServiceNotFound(
            f"there are several services{where}: {', '.join(s.address for s in live)}",
            candidates=[s.address for s in live],
            hint="choose one with pathways_service=",
        )
    raise ServiceNotFound(
        f"there is no service{where}: no JobSet has a {names.HEAD_JOB} with a resource manager",
        hint="namespace= selects another namespace",
    )


def _pod_spec(replicated_job: Mapping[str, Any]) -> Mapping[str, Any]:
    job = (replicated_job.get("template") or {}).get("spec") or {}
    return (job.get("template") or {}).get("spec") or {}


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Returns all containers, init containers included, which servers may be, too."""
    yield from pod.get("containers") or ()
    yield from pod.get("initContainers") or ()


def _manager(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in _containers(pod):
        if container.get("name") == names.RM_CONTAINER or _RM_FLAG in _words(container):
            return container
    return None


def _words(container: Mapping[str, Any]) -> list[str]:
    return [str(w) for w in (*(container.get("command") or ()), *(container.get("args") or ()))]


def _is_insecure(container: Mapping[str, Any]) -> bool:
    variables = {v.get("name"): v.get("value") for v in container.get("env") or ()}
    name, value = INSECURE_SERVERS
    return variables.get(name) == value


def flags_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Returns a container's flags by name, from ``--name=value`` and ``--name value``."""
    flags: dict[str, str] = {}
    for word, following in itertools.pairwise([*_words(container), ""]):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        flags[name] = value if equals else "" if following.startswith("--") else following
    return flags


def _instances(flags: Mapping[str, str]) -> dict[str, int]:
    kinds = [kind.strip() for kind in flags.get("instance_type", "").split(",")]
    counts = [count.strip() for count in flags.get("instance_count", "").split(",")]
    if len(kinds) != len(counts) or not all(c.isdecimal() for c in counts) or not all(kinds):
        return {}
    return {kind: int(count) for kind, count in zip(kinds, counts, strict=True)}


def _group(name: str, job: Mapping[str, Any], instances: Mapping[str, int]) -> WorkerGroup:
    spec = (job.get("template") or {}).get("spec") or {}
    hosts = spec.get("completions") or spec.get("parallelism") or 1
    return WorkerGroup(
        name=name,
        slices=_number(job.get("replicas"), 1),
        hosts=_number(hosts, 1),
        instance_type=_type_of(_pod_spec(job), list(instances)),
    )


def _type_of(pod: Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Returns the service's type that a pod of workers, or its nodes, have."""
    if len(kinds) == 1:
        return kinds[0]
    for container in _containers(pod):
        for variable in container.get("env") or ():
            if variable.get("name") == "SPS_INSTANCE_TYPE" and variable.get("value") in kinds:
                return str(variable["value"])
    selector = pod.get("nodeSelector") or {}
    place = (
        selector.get("cloud.google.com/gke-tpu-accelerator"),
        selector.get("cloud.google.com/gke-tpu-topology"),
    )
    chips = [
        str(((c.get("resources") or {}).get("limits") or {}).get("google.com/tpu", ""))
        for c in _containers(pod)
    ]
    for kind in kinds:
        try:
            known = InstanceType.parse(kind)
        except InvalidRequestError:
            continue
        alike = place == (known.accelerator_label, known.topology)
        if alike and str(known.chips_per_host) in chips:
            return kind
    return ""


def _sidecar(pod: Mapping[str, Any]) -> str:
    """Returns the image of the sidecar, which its name or image identifies."""
    for container in _containers(pod):
        image = str(container.get("image", ""))
        if "sidecar" in str(container.get("name", "")) or "colocated" in image:
            return image
    return ""


def _host(jobset: Mapping[str, Any]) -> str:
    name = str((jobset.get("metadata") or {}).get("name", ""))
    network = (jobset.get("spec") or {}).get("network") or {}
    return f"{name}-{names.HEAD_JOB}-0-0.{network.get('subdomain') or name}"


def _is_at(service: Service, address: str) -> bool:
    host, _, port = address.lower().rpartition(":")
    own, _, own_port = service.address.rpartition(":")
    if port != own_port:
        return False
    # NAME.SUBDOMAIN, .NAMESPACE, .svc, and the cluster's domain: as many parts as given.
    full = f"{own}.{service.namespace}.svc"
    shorter = (own, f"{own}.{service.namespace}", full)
    return host in shorter or host.startswith(f"{full}.")


def jobset_end(jobset: Mapping[str, Any]) -> str:
    """Returns how a JobSet ended, e.g. ``has failed: ...``; empty if it has not."""
    for kind, what in (("Completed", "has ended"), ("Failed", "has failed")):
        found = condition(jobset, kind)
        if found.get("status") == "True":
            return f"{what}: {found.get('message') or found.get('reason') or kind}"
    return ""


def _ended(jobset: Mapping[str, Any]) -> str:
    if how := jobset_end(jobset):
        return f"its JobSet {how}"
    if (jobset.get("metadata") or {}).get("deletionTimestamp"):
        return "its JobSet is being deleted"
    if (jobset.get("spec") or {}).get("suspend"):
        return "its JobSet is suspended"
    return ""


def _seconds(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default
