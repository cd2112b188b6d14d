"""The options of `sps run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.api.proxy_options import split_options
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["RunOptions"]

#: The instance type of a request that names only how many slices, as upstream has it.
_TYPE = "tpuv6e:2x2"
#: Options that are no keywords of connect().
_OWN = ("slices", "tpu_type", "tpu_count", "json_events", "tune_allocator")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `sps run` beside its program and the place of the service."""

    slices: Annotated[
        list[str] | None,
        typer.Option(
            help="TYPE=COUNT, e.g. tpuv6e:2x2=2 or v6e-16=2; repeatable, or comma-separated."
        ),
    ] = None
    tpu_type: Annotated[
        str | None,
        typer.Option(
            "--tpu_type", metavar="TYPE", help=f"Instead of --slices; {_TYPE} if omitted."
        ),
    ] = None
    tpu_count: Annotated[
        int | None,
        typer.Option("--tpu_count", metavar="N", help="How many slices of it; 1 if omitted."),
    ] = None
    gcs_bucket: Annotated[
        str | None,
        typer.Option("--gcs_bucket", metavar="gs://NAME", help="For the service's files."),
    ] = None
    proxy_job_name: Annotated[
        str | None, typer.Option("--proxy_job_name", help="The connection's name; made up else.")
    ] = None
    proxy_server_image: Annotated[
        str | None,
        typer.Option(
            "--proxy_server_image",
            help="The proxy's; without it, the one that matches the service.",
        ),
    ] = None
    proxy_options: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy_options",
            metavar="KEY:VALUE",
            help="e.g. use_insecure_credentials:false or xla_flags:'--xla_a --xla_b'; repeatable, "
            "or comma-separated.",
        ),
    ] = None
    collect_service_metrics: Annotated[
        bool,
        typer.Option(
            "--collect_service_metrics/--no_collect_service_metrics",
            help="Send the service's metrics to Google Cloud Monitoring.",
        ),
    ] = False
    queue_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds to wait for slices that are taken; without it: fail at once."),
    ] = None
    timeout: Annotated[
        float, typer.Option(help="Seconds for the service and the proxy to become ready.")
    ] = 300.0
    priority: Annotated[
        str | None,
        typer.Option(
            help="Higher goes first in the queue, and may preempt lower ones: a number, or "
            f"{' or '.join(PRIORITIES)}, in a cluster any of its PriorityClasses; 0 without it."
        ),
    ] = None
    elastic_slices: Annotated[
        int, typer.Option(help="How many of the slices may be missing at the start.")
    ] = 0
    local_devices: Annotated[
        bool,
        typer.Option(
            "--local-devices/--no-local-devices",
            help='Whether this machine\'s CPU is usable beside the slices, as jax.devices("cpu").',
        ),
    ] = True
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--no-strict",
            help="Refuse what Google's proxies refuse (Python callbacks inside jit), so that what "
            "works here works there; without it: as SPS_STRICT says.",
        ),
    ] = None
    json_events: Annotated[
        Path | None, typer.Option(help="A file that gets every event, one line of JSON each.")
    ] = None
    tune_allocator: Annotated[
        bool,
        typer.Option(
            "--tune-allocator/--no-tune-allocator",
            help="Set glibc's MALLOC_... variables, where the environment does not, so that the "
            "program keeps memory that it had: large arrays are fetched faster.",
        ),
    ] = True

    def keywords(self) -> dict[str, Any]:
        """Returns keywords of connect().

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
    """Returns how many slices of which type; None: one of the service's first type."""
    if tpu_type is None and tpu_count is None:
        return parse_instance_texts(slices) if slices else None
    if slices:
        raise InvalidRequestError(
            "--slices", list(slices), "nothing beside --tpu_type, --tpu_count"
        )
    return {tpu_type or _TYPE: 1 if tpu_count is None else tpu_count}
