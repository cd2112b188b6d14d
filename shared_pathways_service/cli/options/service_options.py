"""The options that describe a service in a cluster: the same ones to deploy, upgrade and render."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.cli.options.option_groups import takes_group
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.machine_types import slice_type
from shared_pathways_service.manifests.service_inputs import parse_slices, server_image

__all__ = ["ServiceOptions", "takes_service"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What was said of a service; None: nothing was said."""

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

    def fields(self) -> dict[str, Any]:
        """Returns what was said, as fields of `ServiceInputs`.

        Raises:
          InvalidRequestError: There are no such slices, or two options name an image.
        """
        said = {
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
        }
        return {name: value for name, value in said.items() if value is not None}

    def _instances(self) -> dict[str, int] | None:
        """Returns slices by instance type, named in this project's way or in upstream's."""
        upstreams = (self.tpu_type, self.topology, self.num_slices)
        if upstreams == (None, None, None):
            return parse_slices(parse_instance_texts(self.slices)) if self.slices else None
        if self.slices:
            expected = "nothing beside --tpu_type, --topology, --num_slices"
            raise InvalidRequestError("--slices", self.slices, expected)
        if self.tpu_type is None:
            raise InvalidRequestError("--tpu_type", None, "a TPU type, e.g. v6e")
        if self.num_slices is None:
            raise InvalidRequestError("--num_slices", None, "a number of slices")
        if self.topology is None:
            return parse_slices({self.tpu_type: self.num_slices}, field="--tpu_type")
        kind = slice_type(
            self.tpu_type, self.topology, type_field="--tpu_type", topology_field="--topology"
        )
        return {str(kind): self.num_slices}


_OPTIONS: dict[str, Any] = {
    "slices": Annotated[
        list[str] | None,
        typer.Option(
            "--slices",
            metavar="TYPE=COUNT",
            help="Slices, spares too, e.g. tpuv6e:2x2=2, ct6e-standard-4t:4x4=1 or v6e-16=1; "
            "repeatable.",
        ),
    ],
    "tpu_type": Annotated[
        str | None,
        typer.Option(
            "--tpu_type",
            metavar="TYPE",
            help="Upstream's way to name slices, instead of --slices: e.g. v6e.",
        ),
    ],
    "topology": Annotated[
        str | None, typer.Option("--topology", metavar="AxB", help="Beside --tpu_type, e.g. 4x4.")
    ],
    "num_slices": Annotated[
        int | None,
        typer.Option("--num_slices", metavar="N", min=1, help="Beside --tpu_type: how many."),
    ],
    "gcs_bucket": Annotated[
        str | None, typer.Option("--gcs_bucket", help="gs://… for scratch data.")
    ],
    "jax_version": Annotated[
        str | None,
        typer.Option("--jax-version", help="Google's server image of that JAX, e.g. 0.9.0."),
    ],
    "server_image": Annotated[
        str | None, typer.Option("--server-image", help="Of resource manager and workers.")
    ],
    "sidecar_image": Annotated[
        str | None, typer.Option("--sidecar-image", help="Of colocated Python beside each worker.")
    ],
    "max_slice_restarts": Annotated[
        int | None,
        typer.Option(
            min=0, help="Failures of each host before the service is given up. [default: 1000000]"
        ),
    ],
    "max_restarts": Annotated[
        int | None,
        typer.Option(
            "--max_restarts",
            min=0,
            help="How often the whole JobSet is started again after one of its Jobs has failed. "
            "[default: 0]",
        ),
    ],
    "priority_class": Annotated[
        str | None, typer.Option("--priority-class", help="The PriorityClass of all pods.")
    ],
    "spares": Annotated[
        int | None,
        typer.Option(min=0, help="Slices of each type kept for re-placement (our image only)."),
    ],
    "server_arg": Annotated[
        list[str] | None,
        typer.Option(
            "--server-arg", metavar="--NAME=VALUE", help="For the resource manager; repeatable."
        ),
    ],
    "worker_arg": Annotated[
        list[str] | None,
        typer.Option("--worker-arg", metavar="--NAME=VALUE", help="For the workers; repeatable."),
    ],
    "gcsfuse": Annotated[
        bool | None,
        typer.Option(help="Have the bucket as /gcs of workers and sidecars, by GKE's driver."),
    ],
    "host_network": Annotated[
        bool | None, typer.Option(help="Have pods use their nodes' network.")
    ],
    "insecure_server_credentials": Annotated[
        bool | None,
        typer.Option(
            help="Have Google's servers speak plaintext gRPC with each other: outside of Google "
            "Cloud there is no ALTS. Their network must be private.",
        ),
    ],
}


def takes_service(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options that describe a service; it takes them as its `wanted`."""
    return takes_group(command, "wanted", ServiceOptions, _OPTIONS)
