"""The checks of the preflight in a cluster, on answers of its API server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.api.checks import Check, Outcome, judge
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.api.request_fields import check_bucket
from shared_pathways_service.cluster_state.readiness import ServiceReadiness, check_instances
from shared_pathways_service.cluster_state.services import Service, find_service
from shared_pathways_service.constants import CPU, DISTRIBUTED_ENGINE
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotFound,
    ServiceNotReady,
    SharedPathwaysError,
)
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.image_names import (
    Image,
    Versions,
    check_skew,
    is_ours,
    proxy_image_for,
    python_skew,
)
from shared_pathways_service.manifests.permissions import Permission, access_denied
from shared_pathways_service.manifests.proxy_inputs import check_limits

__all__ = [
    "READINESS",
    "Examined",
    "bucket_check",
    "ffi_check",
    "head_check",
    "image_check",
    "jax_check",
    "keep_for_check",
    "limits_check",
    "permissions_check",
    "service_check",
    "sidecar_check",
    "slices_check",
    "types_check",
]

#: Checks that may succeed later.
READINESS: Final = ("resource manager", "slices")


class Examined:
    """The checks so far, in order, and their findings for later checks."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.service: Service | None = None
        self.readiness: ServiceReadiness | None = None

    def add(self, *checks: Check) -> None:
        """Adds checks."""
        self.checks += checks

    @property
    def final_failure(self) -> SharedPathwaysError | None:
        """The error of the first failed check that will not succeed later."""
        failed = (check for check in self.checks if check.outcome is Outcome.FAILED)
        return next((check.error for check in failed if check.name not in READINESS), None)

    @property
    def warnings(self) -> Sequence[str]:
        """The problems that may occur later."""
        return [check.found for check in self.checks if check.outcome is Outcome.WARNING]


def permissions_check(
    wanted: Sequence[Permission], missing: Sequence[Permission], namespace: str
) -> Check:
    """Checks that all needed permissions are granted."""
    if missing:
        return Check.failed("permissions", access_denied(missing, namespace))
    found = f"all {len(wanted)} needed permissions in namespace {namespace}"
    return Check(name="permissions", outcome=Outcome.OK, found=found)


def service_check(
    jobsets: Iterable[Mapping[str, Any]], address: str, *, namespace: str
) -> tuple[Check, Service | None]:
    """Finds the service; see `find_service`."""
    try:
        service = find_service(jobsets, address, namespace=namespace)
    except ServiceNotFound as error:
        return Check.failed("service", error), None
    if service.ended:
        ended = ServiceNotReady(f"the service {service.name} has ended: {service.ended}")
        return Check.failed("service", ended), service
    if service.draining:
        closed = ServiceNotReady(
            f"the service {service.name} refuses new connections: {service.draining}",
            hint="connect again afterwards",
        )
        return Check.failed("service", closed), service
    whose = "an image of this project" if service.is_ours else "an image of Pathways on Cloud"
    found = f"{service.name} at {service.address}, {whose}"
    return Check(name="service", outcome=Outcome.OK, found=found), service


def types_check(service: Service, virtual_slices: Sequence[str]) -> Check:
    """Compares the request with the arguments of the resource manager."""

    def look() -> str:
        check_instances(service, virtual_slices)
        return ", ".join(f"{count} x {kind}" for kind, count in service.instances.items())

    if not service.instances:
        why = "the resource manager's arguments do not name its instance types"
        return Check.unknown("instance types", why)
    return judge("instance types", look)


def image_check(service: Service, chosen: str) -> tuple[Check, str]:
    """Determines the image of the proxy: the user's choice, or the one that belongs to the service.

    Returns the check, and the image; empty if there is none.
    """
    try:
        image = chosen or proxy_image_for(service.image)
    except InvalidRequestError as error:
        return Check.failed("proxy image", error), ""
    return Check(name="proxy image", outcome=Outcome.OK, found=image), image


def jax_check(client: Versions, image: str) -> Check:
    """Compares the client's JAX with that of an image."""
    check = judge(
        "JAX", lambda: f"{client.jax} here and in {image}", warns=lambda: check_skew(client, image)
    )
    # (If the tag does not name a release, the probe compares later.)
    if check.outcome is Outcome.OK and "jax" not in image.rpartition(":")[2]:
        found = f"{client.jax} here; the tag of {image} does not name its release"
        return Check.unknown("JAX", found)
    return check


def limits_check(options: ProxyOptions, image: str) -> Check:
    """Checks that an image supports the requested limits."""

    def look() -> str:
        check_limits(options, image)
        return ", ".join(f"{name}:{value}" for name, value in options.limits.items())

    return judge("limits", look)


def ffi_check(options: ProxyOptions) -> Check:
    """Refuses users' libraries, which only embedded services load."""
    error = InvalidRequestError(
        "proxy_options",
        f"ffi_targets:{','.join(options.ffi_targets)}",
        "none in a cluster: only an embedded service can load users' libraries "
        "(`sps serve --allow-ffi-libraries DIR`)",
    )
    return Check.failed("ffi", error)


def sidecar_check(client: Versions, service: Service, proxy_image: str) -> Check:
    """Compares the client with the image that runs colocated Python: the sidecar, or our proxy."""
    ours = is_ours(proxy_image)
    if ours and service.platform != CPU:
        expected = f"no sidecar for {service.name}, whose platform is {service.platform}"
        return Check.failed("sidecar", _no_sidecar(expected))
    if ours and service.engine == DISTRIBUTED_ENGINE and not service.allows_python:
        expected = (
            f"no sidecar: on executors of {service.name}, functions of tenants run only where the "
            "operator allows it (`sps deploy --allow-colocated-python`)"
        )
        return Check.failed("sidecar", _no_sidecar(expected))
    if not ours and not service.sidecar_image:
        expected = f"a service with a colocated Python sidecar; {service.name} has none"
        return Check.failed("sidecar", _no_sidecar(expected))
    image = proxy_image if ours else service.sidecar_image
    if ours and not Image.parse(image).versions.python:
        found = f"Python {client.python} here; the tag of {image} does not name its own"
        return Check.unknown("sidecar", found)
    return judge(
        "sidecar",
        lambda: f"Python {client.python} and JAX {client.jax} here and in {image}",
        warns=lambda: python_skew(client, image, "image" if ours else "sidecar"),
    )


def _no_sidecar(expected: str) -> InvalidRequestError:
    return InvalidRequestError("proxy_options", "sidecar:true", expected)


def bucket_check(service: Service, chosen: str) -> Check:
    """Checks the form of the bucket for scratch data."""
    bucket = chosen or service.gcs_scratch_location
    if not bucket:
        return Check.unknown("bucket", "neither the request nor the resource manager names one")
    whose = "as requested" if chosen else "from the resource manager"
    return judge("bucket", lambda: f"{check_bucket(bucket, field='gcs_bucket')}, {whose}")


def keep_for_check(service: Service, keep_for_s: float) -> Check:
    """Compares the request with the operator's limit."""
    limit_s = service.max_keep_for_s
    if limit_s is None or keep_for_s <= limit_s:
        return Check(name="keep_for", outcome=Outcome.OK, found=f"{keep_for_s:g} s")
    error = InvalidRequestError(
        "keep_for",
        keep_for_s,
        f"at most {limit_s:g} seconds, the limit of the service {service.name}",
    )
    return Check.failed("keep_for", error)


def head_check(found: ServiceReadiness) -> Check:
    """Checks that the resource manager's pod is ready."""
    if found.head is not None and found.head.ready:
        where = f" on {found.head.node}" if found.head.node else ""
        what = f"{found.head.name}{where} is ready"
        return Check(name="resource manager", outcome=Outcome.OK, found=what)
    no_pod = "; ".join(filter(None, ("the head has no pod", found.detail)))
    return _not_ready("resource manager", found, str(found.head or no_pod))


def slices_check(
    found: ServiceReadiness, virtual_slices: Sequence[str], elastic_slices: int
) -> Check:
    """Checks that enough slices are ready for the request."""
    have = f"{found.ready} of {found.wanted} slices are ready"
    if found.ready >= found.wanted:
        return Check(name="slices", outcome=Outcome.OK, found=have)
    # (The resource manager has a separate check.)
    troubles = [t for t in found.troubles if found.head is None or t != str(found.head)]
    what = "; ".join(filter(None, (have, *troubles, found.detail)))
    if found.head_ready and found.suffices_for(virtual_slices, elastic_slices):
        fix = "enough for this request, unless others hold them"
        return Check(name="slices", outcome=Outcome.WARNING, found=what, fix=fix)
    return _not_ready("slices", found, what)


def _not_ready(name: str, found: ServiceReadiness, what: str) -> Check:
    describe = f"kubectl describe pods --selector {names.LABEL_JOBSET}={found.service.name}"
    error = ServiceNotReady(
        f"the service {found.service.name} is not ready: {what}",
        ready=found.ready,
        wanted=found.wanted,
        pods=found.troubles,
        hint=found.hint(f"connect() waits for it up to timeout=; for details run {describe}"),
    )
    return Check(name=name, outcome=Outcome.FAILED, found=what, fix=error.hint, error=error)
