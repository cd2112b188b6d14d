"""The inputs of a service's JobSet, and checks that need no cluster."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Final

from shared_pathways_service import constants
from shared_pathways_service.api.instances import parse_instance_counts
from shared_pathways_service.api.request_fields import (
    check_bucket,
    check_keep_for,
    check_subdomain,
)
from shared_pathways_service.api.slice_names import named_type
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_bool, check_dns_label, check_int
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests import jobset_parts as parts
from shared_pathways_service.manifests.image_names import Image, is_ours
from shared_pathways_service.manifests.machine_types import slice_type
from shared_pathways_service.manifests.page_inputs import PageInputs
from shared_pathways_service.manifests.sidecar_parts import MEMORY_FLAG
from shared_pathways_service.manifests.state_parts import read_size

__all__ = ["DEFAULT_SERVER_IMAGE", "OWN_FLAGS", "ServiceInputs", "parse_slices", "server_image"]

DEFAULT_SERVER_IMAGE: Final = f"{parts.SERVER_REPOSITORY}:latest"

_RELEASE: Final = re.compile(r"[0-9]+(\.[0-9]+){1,3}")
_ARGUMENT: Final = re.compile(r"--(?P<name>[a-zA-Z0-9_]+)(=.*)?", re.DOTALL)
#: Flags that other inputs determine.
OWN_FLAGS: Final = (
    "server_port",
    "node_type",
    "instance_count",
    "instance_type",
    "gcs_scratch_location",
    "resource_manager_address",
    "platform",
    MEMORY_FLAG,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceInputs:
    """The inputs of a service's JobSet.

    Attributes:
      name: The JobSet's name, a DNS label of at most 22 characters that begins with a letter.
      instances: Slices by instance type, spares included, e.g. ``{"tpuv6e:2x2": 2}``. Several
        types need an image of ours.
      gcs_bucket: ``gs://…`` for scratch data; may be empty.
      image: The image of resource manager and workers.
      sidecar_image: The image of the colocated Python sidecars; empty: no sidecars.
      spares: The number of slices of each type that are reserved for re-placement; our image only.
      max_slice_restarts: Tolerated failures of each host of a slice, 0 or more.
      max_restarts: The number of restarts of the whole JobSet after one of its Jobs failed; 0: the
        JobSet fails with the Job.
      priority_class: The PriorityClass of all pods; empty: the cluster's default.
      server_args: Further arguments of the resource manager, ``--name=value``.
      worker_args: Further arguments of the workers.
      gcsfuse: Whether the bucket is mounted as ``/gcs`` of workers and sidecars.
      host_network: Whether pods use their node's network, as with the Pathways controller.
      insecure_server_credentials: Whether the servers use plaintext between each other, as is
        necessary outside of Google Cloud; not with our image.
      max_keep_for_s: The longest ``keep_for`` of tenants in seconds; None: no limit.
      state_size: The size of the volume on which the resource manager keeps its state, e.g.
        ``1Gi``; our image only; empty: it keeps it in memory.
      lease: Whether the resource manager decides only while it holds a Lease, so that two heads
        never both decide; our image only.
      storage_class: The volume's StorageClass; empty: the cluster's default.
      verify_users: Whether tenants' users are those that the API server has verified; only with our
        image, and in a prepared cluster (`manifests.rbac.verification_objects`).
      compiled_programs: Whether proxies keep compiled programs on the claim of `programs_claim`;
        only with verified users.
      engine: Where programs run: ``local``, in the tenants' proxies, or ``distributed``, in
        executors that workers start; the latter only with our image.
      platform: What executors compute on: ``cpu``; ``cuda``, with the GPUs that each worker's pod
        requests; or ``tpu``.
      allow_colocated_python: Whether tenants may run Python on the hosts of executors.
      page: Its page in the cluster; None: it has none.

    Raises:
      InvalidRequestError: A field is wrong, or contradicts another one.
    """

    name: str
    instances: Mapping[str, int]
    namespace: str = "default"
    gcs_bucket: str = ""
    image: str = DEFAULT_SERVER_IMAGE
    sidecar_image: str = ""
    spares: int = 0
    max_slice_restarts: int = constants.MAX_SLICE_RESTARTS
    max_restarts: int = 0
    priority_class: str = ""
    server_args: Sequence[str] = ()
    worker_args: Sequence[str] = ()
    gcsfuse: bool = False
    host_network: bool = False
    insecure_server_credentials: bool = False
    max_keep_for_s: float | None = None
    state_size: str = ""
    storage_class: str = ""
    lease: bool = False
    verify_users: bool = False
    compiled_programs: bool = False
    engine: str = constants.LOCAL_ENGINE
    platform: str = constants.CPU
    allow_colocated_python: bool = False
    page: PageInputs | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        parts.check_jobset_name(self.name)
        check_dns_label("namespace", self.namespace)
        # Frozen, but the bucket is stored with its scheme.
        object.__setattr__(self, "gcs_bucket", check_bucket(self.gcs_bucket or None) or "")
        counts = self.counts
        check_int("spares", self.spares, low=0, high=min(counts.values()) - 1)
        check_int("max_slice_restarts", self.max_slice_restarts, low=0)
        check_int("max_restarts", self.max_restarts, low=0, high=2**31 - 1)
        if self.priority_class:
            check_subdomain("priority_class", self.priority_class)
        for field in ("server_args", "worker_args"):
            _check_arguments(field, getattr(self, field))
        if check_bool("gcsfuse", self.gcsfuse) and not self.gcs_bucket:
            raise InvalidRequestError("gcsfuse", True, "a gcs_bucket to mount")
        check_bool("lease", self.lease)
        check_bool("insecure_server_credentials", self.insecure_server_credentials)
        check_bool("verify_users", self.verify_users)
        if check_bool("compiled_programs", self.compiled_programs) and not self.verify_users:
            expected = "to be given only with verify_users: each user has programs of its own"
            raise InvalidRequestError("compiled_programs", True, expected)
        self._check_engine()
        self._check_platform()
        if self.max_keep_for_s is not None:
            check_keep_for("max_keep_for_s", self.max_keep_for_s)
        if self.state_size:
            read_size(self.state_size, field="state_size")
        self._check_storage_class()
        if self.page is not None:
            self.page.image_for(self.image)
        if is_ours(self.image):
            self._check_ours()
        else:
            self._check_another(counts)

    @property
    def counts(self) -> dict[InstanceType, int]:
        """Slices by instance type."""
        return parse_instance_counts(self.instances, field="instances")

    @property
    def has_executors(self) -> bool:
        """Whether programs run in executors that workers start."""
        return self.engine == constants.DISTRIBUTED_ENGINE

    def _check_engine(self) -> None:
        if self.engine not in constants.ENGINES:
            raise InvalidRequestError(
                "engine", self.engine, f"one of {', '.join(constants.ENGINES)}"
            )
        if self.has_executors and not is_ours(self.image):
            expected = f"local with the image {self.image}, whose workers start no executors"
            raise InvalidRequestError("engine", self.engine, expected)
        allowed = check_bool("allow_colocated_python", self.allow_colocated_python)
        if allowed and not self.has_executors:
            expected = "to be given only with the engine distributed: other workers run no programs"
            raise InvalidRequestError("allow_colocated_python", True, expected)
        if self.has_executors and self.compiled_programs:
            expected = "to be given only with the engine local: executors keep no programs"
            raise InvalidRequestError("compiled_programs", True, expected)

    def _check_platform(self) -> None:
        if self.platform not in constants.PLATFORMS:
            expected = f"one of {', '.join(constants.PLATFORMS)}"
            raise InvalidRequestError("platform", self.platform, expected)
        if self.platform == constants.CPU:
            return
        if not is_ours(self.image):
            expected = f"cpu with the image {self.image}, whose workers start no executors"
            raise InvalidRequestError("platform", self.platform, expected)
        if not self.has_executors:
            expected = f"cpu with the engine {self.engine}; executors need the engine distributed"
            raise InvalidRequestError("platform", self.platform, expected)
        if self.allow_colocated_python:
            expected = f"to be given only with the platform cpu, not with {self.platform}"
            raise InvalidRequestError("allow_colocated_python", True, expected)

    def _check_storage_class(self) -> None:
        if not self.storage_class:
            return
        check_subdomain("storage_class", self.storage_class)
        if not self.state_size:
            expected = "to be given only with a state_size"
            raise InvalidRequestError("storage_class", self.storage_class, expected)

    def _check_ours(self) -> None:
        if self.sidecar_image:
            raise InvalidRequestError(
                "sidecar_image",
                self.sidecar_image,
                f"none with the image {self.image}, whose workers run no user code",
            )
        if self.insecure_server_credentials:
            raise InvalidRequestError(
                "insecure_server_credentials",
                True,
                f"False with the image {self.image}: this project's servers need no ALTS",
            )

    def _check_another(self, counts: Mapping[InstanceType, int]) -> None:
        if self.verify_users:
            raise InvalidRequestError(
                "verify_users",
                True,
                f"False with the image {self.image}, whose resource manager knows no users",
            )
        if len(counts) > 1:
            raise InvalidRequestError(
                "instances", dict(self.instances), f"one instance type with the image {self.image}"
            )
        if self.spares:
            raise InvalidRequestError(
                "spares",
                self.spares,
                f"none with the image {self.image}, whose resource manager does not support them",
            )
        if self.state_size:
            raise InvalidRequestError(
                "state_size",
                self.state_size,
                f"none with the image {self.image}, whose resource manager has no state file",
            )
        if self.lease:
            expected = f"False with the image {self.image}, whose resource manager takes no Lease"
            raise InvalidRequestError("lease", True, expected)
        if self.sidecar_image:
            _check_sidecar(self.image, self.sidecar_image)


def parse_slices(counts: Mapping[str, int], *, field: str = "--slices") -> dict[str, int]:
    """Returns slices by GKE's instance types.

    Args:
      counts: By instance type, under any name that `named_type` reads, or by machine type:
        ``{"ct6e-standard-4t:4x4": 2}``.
      field: The field's name, for errors.

    Raises:
      InvalidRequestError: There is no such machine type, or it does not have the topology; or a
        type is given twice under two names.
    """
    found: dict[str, int] = {}
    for text, count in counts.items():
        name = text if ":" in text else str(named_type(text, field=field))
        machine, _, topology = name.partition(":")
        kind = slice_type(machine, topology, type_field=field, topology_field=field)
        if str(kind) in found:
            raise InvalidRequestError(field, text, f"{kind} once")
        found[str(kind)] = count
    return found


def server_image(jax_version: str | None, image: str | None) -> str | None:
    """Returns Google's image for a JAX release, or the other named image; None without either.

    Raises:
      InvalidRequestError: Both are given, or one is not valid.
    """
    if jax_version is None:
        return None if image is None else str(Image.parse(image, field="--server-image"))
    if image is not None:
        raise InvalidRequestError("--server-image", image, "either it or --jax-version")
    if not _RELEASE.fullmatch(jax_version):
        raise InvalidRequestError("--jax-version", jax_version, "a release of JAX, e.g. 0.9.0")
    return f"{parts.SERVER_REPOSITORY}:jax-{jax_version}"


def _check_arguments(field: str, arguments: Sequence[str]) -> None:
    for argument in arguments:
        form = _ARGUMENT.fullmatch(argument)
        if form is None:
            raise InvalidRequestError(field, argument, "--NAME or --NAME=VALUE")
        if form["name"] in OWN_FLAGS:
            expected = f"no --{form['name']}, which other options determine"
            raise InvalidRequestError(field, argument, expected)


def _check_sidecar(server: str, sidecar: str) -> None:
    """Compares the versions in two tags, because functions pass from one image to the other."""
    ours = Image.parse(server).versions.jax
    theirs = Image.parse(sidecar, field="sidecar_image").versions.jax
    if ours and theirs and ours.split(".")[:2] != theirs.split(".")[:2]:
        expected = f"an image with JAX {ours}, as in {server}"
        raise InvalidRequestError("sidecar_image", sidecar, expected)
