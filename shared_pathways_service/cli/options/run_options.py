"""Options of `sps run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.api.proxy_options import split_options
from shared_pathways_service.api.requests import DEFAULT_LINK
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["RunOptions"]

#: The instance type of a request that names only a number of slices, as upstream has it.
_TYPE = "tpuv6e:2x2"
#: Options that are not keywords of connect().
_OWN = ("slices", "tpu_type", "tpu_count", "json_events", "tune_allocator")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `sps run` except its program and the place of the service."""

    slices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=COUNT",
            help="Request these slices, e.g. tpuv6e:2x2=2 or v6e-16=2; repeatable, or "
            "comma-separated. [default: one of the service's first type]",
        ),
    ] = None
    tpu_type: Annotated[
        str | None,
        typer.Option(
            "--tpu-type",
            metavar="TYPE",
            help=f"Request slices of this type instead of --slices. [default: {_TYPE}]",
        ),
    ] = None
    tpu_count: Annotated[
        int | None,
        typer.Option(
            "--tpu-count", metavar="N", help="Request so many slices of --tpu-type. [default: 1]"
        ),
    ] = None
    gcs_bucket: Annotated[
        str | None,
        typer.Option(
            "--gcs-bucket", metavar="gs://NAME", help="Use this bucket for the service's files."
        ),
    ] = None
    proxy_job_name: Annotated[
        str | None,
        typer.Option(
            "--proxy-job-name", help="Name the connection. [default: isc-proxy-USER-xxxxx]"
        ),
    ] = None
    proxy_server_image: Annotated[
        str | None,
        typer.Option(
            "--proxy-server-image",
            help="Use this image for the proxy. [default: the one that matches the service]",
        ),
    ] = None
    proxy_options: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy-options",
            metavar="KEY:VALUE",
            help="Set an option of the proxy, e.g. use_insecure_credentials:false or "
            "xla_flags:'--xla_a --xla_b'; repeatable, or comma-separated.",
        ),
    ] = None
    collect_service_metrics: Annotated[
        bool,
        typer.Option(
            "--collect-service-metrics/--no-collect-service-metrics",
            help="Send the service's metrics to Google Cloud Monitoring.",
        ),
    ] = False
    queue_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Wait so long in the queue if slices are taken. [default: fail at once]",
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Wait so long for the service and the proxy to become ready."
        ),
    ] = 300.0
    priority: Annotated[
        str | None,
        typer.Option(
            help="Queue with this priority; higher ones go first, and may preempt lower ones: a "
            f"number, {' or '.join(PRIORITIES)}, or in a cluster any of its PriorityClasses. "
            "[default: 0]"
        ),
    ] = None
    elastic_slices: Annotated[
        int, typer.Option(help="Start even if so many of the slices are not placed yet.")
    ] = 0
    local_devices: Annotated[
        bool,
        typer.Option(
            "--local-devices/--no-local-devices",
            help='Keep this machine\'s CPU usable together with the slices, as jax.devices("cpu").',
        ),
    ] = True
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--no-strict",
            help="Refuse everything that Google's proxies refuse, such as Python callbacks inside "
            "jit, so that the program also runs there. [default: SPS_STRICT]",
        ),
    ] = None
    link: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="`resumable`: while the connection with its proxy in a cluster is broken, the "
            "program waits, and then goes on; `plain`: it loses its slices.",
        ),
    ] = DEFAULT_LINK
    keep_for: Annotated[
        str | None,
        typer.Option(
            "--keep-for",
            metavar="DURATION",
            help="Let the proxy in a cluster outlive the last sign of life of this machine by so "
            "much: seconds, or 90s, 30m, 2h. [default: SPS_PROXY_DEADLINE_S]",
        ),
    ] = None
    json_events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append every event to this file, as a line of JSON."),
    ] = None
    tune_allocator: Annotated[
        bool,
        typer.Option(
            "--tune-allocator/--no-tune-allocator",
            help="Set glibc's MALLOC_... variables, unless the environment does, so that the "
            "program keeps freed memory and fetches large arrays faster.",
        ),
    ] = True

    def keywords(self) -> dict[str, Any]:
        """Returns the keywords of connect().

        Raises:
          InvalidRequestError: Two options name the slices.
        """
        names = (field.name for field in dataclasses.fields(self) if field.name not in _OWN)
        return {
            **{name: getattr(self, name) for name in names},
            "expected_tpu_instances": _instances(self.slices, self.tpu_type, self.tpu_count),
            "gcs_bucket": self.gcs_bucket or None,
            "proxy_options": split_options(self.proxy_options or ()),
        }


def _instances(
    slices: Sequence[str] | None, tpu_type: str | None, tpu_count: int | None
) -> Mapping[str, int] | None:
    """Returns the number of slices by type; None: one of the service's first type."""
    if tpu_type is None and tpu_count is None:
        return parse_instance_texts(slices) if slices else None
    if slices:
        raise InvalidRequestError(
            "--slices", list(slices), "either --slices, or --tpu-type and --tpu-count"
        )
    return {tpu_type or _TYPE: 1 if tpu_count is None else tpu_count}
