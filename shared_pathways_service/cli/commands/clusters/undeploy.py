"""`sps undeploy`: deletes a service from its cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_note
from shared_pathways_service.cli.options.cluster_options import Place, takes_cluster
from shared_pathways_service.cli.options.draining_options import DrainTimeout, Evict
from shared_pathways_service.cli.undoing import run_undoing

__all__ = ["undeploy"]


@takes_cluster
def undeploy(
    name: Annotated[str, typer.Argument(help="Name of the service.")],
    *,
    drain_timeout: DrainTimeout = 0,
    evict: Evict = False,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Wait so long for its pods to end.")
    ] = 120,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Delete a service once it has no connections, and wait until its pods have ended."""
    run_undoing(
        _undeploy(place, name, drain_timeout_s=drain_timeout, evict=evict, timeout_s=timeout)
    )
    if as_json:
        print_json({"name": name, "namespace": place.namespace, "deleted": True})
    else:
        print_line(f"deleted {name}")


async def _undeploy(
    place: Place, name: str, *, drain_timeout_s: float, evict: bool, timeout_s: float
) -> None:
    from shared_pathways_service.operations import deployment  # noqa: PLC0415 - aiohttp
    from shared_pathways_service.operations.draining import drained  # noqa: PLC0415
    from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened  # noqa: PLC0415

    async with opened(place.service) as cluster:
        jobset, _ = await deployment.jobset_of(cluster, name)
        why = "it is being deleted"
        async with drained(
            cluster, jobset, why=why, timeout_s=drain_timeout_s, evict=evict, note=print_note
        ):
            await deployment.delete(cluster, jobset, timeout_s=timeout_s)
