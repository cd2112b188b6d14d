"""Options that describe a service in a cluster, shared by `deploy`, `upgrade` and `render`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.request_fields import check_keep_for
from shared_pathways_service.cli.options.option_groups import takes_group
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.machine_types import slice_type
from shared_pathways_service.manifests.page_inputs import PageInputs
from shared_pathways_service.manifests.service_inputs import parse_slices, server_image
from shared_pathways_service.manifests.state_parts import read_size

__all__ = ["ServiceOptions", "takes_service"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The given options of a service; None: not given."""

    slices: list[str] | None = None
    tpu_type: str | None = None
    topology: str | None = None
    num_slices: int | None = None
    gcs_bucket: str | None = None
    jax_version: str | None = None
    server_image: str | None = None
    sidecar_image: str | None = None
    max_slice_restarts: int | None = None
    max_restarts: int | None = None
    priority_class: str | None = None
    spares: int | None = None
    server_arg: list[str] | None = None
    worker_arg: list[str] | None = None
    gcsfuse: bool | None = None
    host_network: bool | None = None
    insecure_server_credentials: bool | None = None
    max_keep_for: str | None = None
    state_size: str | None = None
    storage_class: str | None = None
    lease: bool | None = None
    verify_users: bool | None = None
    compiled_programs: bool | None = None
    engine: str | None = None
    platform: str | None = None
    allow_colocated_python: bool | None = None
    ui: bool | None = None
    ui_url: str | None = None
    ui_identity: str | None = None
    ui_audience: str | None = None
    ui_issuer: str | None = None
    ui_jwks: str | None = None
    ui_identity_header: str | None = None
    ui_image: str | None = None

    def fields(self) -> dict[str, Any]:
        """Returns the given options as fields of `ServiceInputs`.

        Raises:
          InvalidRequestError: An option is wrong, or does not go with the others.
        """
        return self.fields_but_page() | self.page_field()

    def fields_but_page(self) -> dict[str, Any]:
        """Returns the given options as fields of `ServiceInputs`, but those of the page.

        Raises:
          InvalidRequestError: The slices do not exist, or two options name an image.
        """
        # (An empty text, not None, turns it off, and then there is no class either.)
        state_size = None if self.state_size is None else read_size(self.state_size)
        given = {
            "instances": self._instances(),
            "gcs_bucket": self.gcs_bucket,
            "image": server_image(self.jax_version, self.server_image),
            "sidecar_image": self.sidecar_image,
            "max_slice_restarts": self.max_slice_restarts,
            "max_restarts": self.max_restarts,
            "priority_class": self.priority_class,
            "spares": self.spares,
            "server_args": tuple(self.server_arg) if self.server_arg else None,
            "worker_args": tuple(self.worker_arg) if self.worker_arg else None,
            "gcsfuse": self.gcsfuse,
            "host_network": self.host_network,
            "insecure_server_credentials": self.insecure_server_credentials,
            "max_keep_for_s": self._max_keep_for_s(),
            "state_size": state_size,
            "lease": self.lease,
            "storage_class": self.storage_class or ("" if state_size == "" else None),
            "verify_users": self.verify_users,
            "compiled_programs": self.compiled_programs,
            "engine": self.engine,
            "platform": self.platform,
            "allow_colocated_python": self.allow_colocated_python,
        }
        return {name: value for name, value in given.items() if value is not None}

    def page_field(self, kept: PageInputs | None = None) -> dict[str, Any]:
        """Returns the field of the page, if it is given.

        Args:
          kept: The page whose options stay as they are unless they are given.

        Raises:
          InvalidRequestError: An option is wrong, or given without ``--ui``.
        """
        self.check_page()
        if not self.ui:
            return {} if self.ui is None else {"page": None}
        given = self._page_options()
        before = {} if kept is None else kept.options()
        if given["identity"] not in (None, before.get("identity")):
            # Options of the one kind mean nothing for the other.
            before = {name: before[name] for name in ("url", "image") if name in before}
        return {"page": PageInputs.check({**given, **before} | _only_given(given))}

    def check_page(self) -> None:
        """Raises InvalidRequestError if an option of the page is given without ``--ui``."""
        for name, value in _only_given(self._page_options()).items():
            if not self.ui:
                raise InvalidRequestError(f"--ui-{name}", value, "to be given only with --ui")

    def _page_options(self) -> dict[str, str | None]:
        prefix = "ui_"
        return {
            field.name.removeprefix(prefix).replace("_", "-"): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name.startswith(prefix)
        }

    def _max_keep_for_s(self) -> float | None:
        if self.max_keep_for is None:
            return None
        return check_keep_for("--max-keep-for", self.max_keep_for)

    def _instances(self) -> dict[str, int] | None:
        """Returns slices by instance type, from this project's options or upstream's."""
        upstreams = (self.tpu_type, self.topology, self.num_slices)
        if upstreams == (None, None, None):
            return parse_slices(parse_instance_texts(self.slices)) if self.slices else None
        if self.slices:
            expected = "either --slices, or --tpu-type, --topology and --num-slices"
            raise InvalidRequestError("--slices", self.slices, expected)
        if self.tpu_type is None:
            raise InvalidRequestError("--tpu-type", None, "a TPU type, e.g. v6e")
        if self.num_slices is None:
            raise InvalidRequestError("--num-slices", None, "a number of slices")
        if self.topology is None:
            return parse_slices({self.tpu_type: self.num_slices}, field="--tpu-type")
        kind = slice_type(
            self.tpu_type, self.topology, type_field="--tpu-type", topology_field="--topology"
        )
        return {str(kind): self.num_slices}


_OPTIONS: dict[str, Any] = {
    "slices": Annotated[
        list[str] | None,
        typer.Option(
            "--slices",
            metavar="TYPE=COUNT",
            help="Create these slices, spares included, e.g. tpuv6e:2x2=2, "
            "ct6e-standard-4t:4x4=1 or v6e-16=1; repeatable.",
        ),
    ],
    "tpu_type": Annotated[
        str | None,
        typer.Option(
            "--tpu-type",
            metavar="TYPE",
            help="Create slices of this TPU type, e.g. v6e, instead of --slices.",
        ),
    ],
    "topology": Annotated[
        str | None,
        typer.Option(
            "--topology", metavar="AxB", help="With --tpu-type: use this topology, e.g. 4x4."
        ),
    ],
    "num_slices": Annotated[
        int | None,
        typer.Option(
            "--num-slices", metavar="N", min=1, help="With --tpu-type: create so many slices."
        ),
    ],
    "gcs_bucket": Annotated[
        str | None,
        typer.Option(
            "--gcs-bucket",
            metavar="gs://NAME",
            help="Store the service's scratch data in this bucket.",
        ),
    ],
    "jax_version": Annotated[
        str | None,
        typer.Option("--jax-version", help="Use Google's server image for this JAX, e.g. 0.9.0."),
    ],
    "server_image": Annotated[
        str | None,
        typer.Option("--server-image", help="Use this image for resource manager and workers."),
    ],
    "sidecar_image": Annotated[
        str | None,
        typer.Option(
            "--sidecar-image", help="Run colocated Python of this image with each worker."
        ),
    ],
    "max_slice_restarts": Annotated[
        int | None,
        typer.Option(min=0, help="Tolerate so many failures of each host. [default: 1000000]"),
    ],
    "max_restarts": Annotated[
        int | None,
        typer.Option(
            "--max-restarts",
            min=0,
            help="Restart the whole JobSet so often after one of its Jobs failed. [default: 0]",
        ),
    ],
    "priority_class": Annotated[
        str | None, typer.Option("--priority-class", help="Give all pods this PriorityClass.")
    ],
    "spares": Annotated[
        int | None,
        typer.Option(
            min=0, help="Reserve slices of each type to replace lost ones (our image only)."
        ),
    ],
    "server_arg": Annotated[
        list[str] | None,
        typer.Option(
            "--server-arg",
            metavar="--NAME=VALUE",
            help="Pass this flag to the resource manager; repeatable.",
        ),
    ],
    "worker_arg": Annotated[
        list[str] | None,
        typer.Option(
            "--worker-arg",
            metavar="--NAME=VALUE",
            help="Pass this flag to the workers; repeatable.",
        ),
    ],
    "gcsfuse": Annotated[
        bool | None,
        typer.Option(help="Mount the bucket as /gcs of workers and sidecars, with GKE's driver."),
    ],
    "host_network": Annotated[
        bool | None, typer.Option(help="Make pods use their node's network.")
    ],
    "insecure_server_credentials": Annotated[
        bool | None,
        typer.Option(
            help="Make Google's servers use plaintext gRPC between each other, as ALTS exists only "
            "in Google Cloud. Their network must be private.",
        ),
    ],
    "max_keep_for": Annotated[
        str | None,
        typer.Option(
            "--max-keep-for",
            metavar="DURATION",
            help="Let proxies outlive the last sign of life of their users by this much at most: "
            "seconds, or 90s, 30m, 2h. [default: no limit]",
        ),
    ],
    "state_size": Annotated[
        str | None,
        typer.Option(
            "--state-size",
            metavar="SIZE",
            help="Keep the resource manager's state on a volume of this size (our image only); 0: "
            "in memory. [default: 1Gi for a new service if the cluster has a default StorageClass]",
        ),
    ],
    "lease": Annotated[
        bool | None,
        typer.Option(
            help="Let the resource manager decide only while it holds a Lease (our image only). "
            "[default: for a new service without a volume for its state]",
            show_default=False,
        ),
    ],
    "storage_class": Annotated[
        str | None,
        typer.Option(
            "--storage-class",
            help="With --state-size: the volume's StorageClass, if not the default.",
        ),
    ],
    "verify_users": Annotated[
        bool | None,
        typer.Option(
            "--verify-users/--no-verify-users",
            help="Take users and teams from the API server instead of from what tenants state "
            "(our image only). [default: if the cluster has the objects of `sps render "
            "user-verification`]",
        ),
    ],
    "compiled_programs": Annotated[
        bool | None,
        typer.Option(
            "--compiled-programs/--no-compiled-programs",
            help="With --verify-users: keep each user's compiled programs for its later "
            "connections, on the claim NAME-compiled-programs, which you create. [default: no]",
        ),
    ],
    "engine": Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="Compute in the tenants' proxies (local), or in executors that workers start "
            "(distributed; our image only). [default: local]",
        ),
    ],
    "platform": Annotated[
        str | None,
        typer.Option(
            "--platform",
            help="With --engine distributed: have executors compute on cpu, on cuda, where each "
            "worker's pod requests a GPU for each chip, or on tpu, on nodes with TPUs. "
            "[default: cpu]",
        ),
    ],
    "allow_colocated_python": Annotated[
        bool | None,
        typer.Option(
            "--allow-colocated-python/--no-allow-colocated-python",
            help="With --engine distributed: allow tenants to run Python on the hosts of their "
            "executors. [default: no]",
        ),
    ],
    "ui": Annotated[
        bool | None,
        typer.Option(
            "--ui/--no-ui",
            help="Serve the page of `sps ui` in the cluster, read-only, behind a proxy of yours "
            "that verifies users (--ui-identity). [default: no]",
        ),
    ],
    "ui_url": Annotated[
        str | None,
        typer.Option(
            "--ui-url", metavar="URL", help="With --ui: the page's address at your proxy."
        ),
    ],
    "ui_identity": Annotated[
        str | None,
        typer.Option(
            "--ui-identity",
            metavar="iap|oidc",
            help="With --ui: accept signed assertions of Google's IAP, or ID tokens that your "
            "proxy passes on.",
        ),
    ],
    "ui_audience": Annotated[
        str | None,
        typer.Option(
            "--ui-audience",
            help="With --ui: their audience: IAP's backend service, or the proxy's client id.",
        ),
    ],
    "ui_issuer": Annotated[
        str | None,
        typer.Option(
            "--ui-issuer",
            metavar="URL",
            help="With --ui-identity oidc: the OpenID provider that issues the ID tokens.",
        ),
    ],
    "ui_jwks": Annotated[
        str | None,
        typer.Option(
            "--ui-jwks",
            metavar="URL",
            help="With --ui: their public keys. [default: where IAP, or the provider's discovery "
            "document, has them]",
        ),
    ],
    "ui_identity_header": Annotated[
        str | None,
        typer.Option(
            "--ui-identity-header",
            metavar="NAME",
            help="With --ui-identity oidc: the header with the ID token. [default: Authorization]",
        ),
    ],
    "ui_image": Annotated[
        str | None,
        typer.Option(
            "--ui-image",
            help="With --ui: a server image of this project. [default: the service's]",
        ),
    ],
}


def _only_given(options: dict[str, str | None]) -> dict[str, str | None]:
    return {name: value for name, value in options.items() if value is not None}


def takes_service(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that describe a service to a command, as its parameter `wanted`."""
    return takes_group(command, "wanted", ServiceOptions, _OPTIONS)
