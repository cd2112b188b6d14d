"""`sps undeploy`: deletes a service from its cluster."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_note
from shared_pathways_service.cli.options.cluster_options import Place, takes_cluster
from shared_pathways_service.cli.options.draining_options import DrainTimeout, Evict
from shared_pathways_service.cli.undoing import run_undoing
from shared_pathways_service.errors import AccessDenied, ServiceNotFound, SharedPathwaysError
from shared_pathways_service.manifests.state_parts import claim_name

if TYPE_CHECKING:
    from shared_pathways_service.operations.cluster_access import Cluster

__all__ = ["undeploy"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    drain_timeout_s: float
    evict: bool
    delete_state: bool
    timeout_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Undeployed:
    """What was deleted where.

    Attributes:
      place: The namespace and its cluster.
      delete_state: The command that deletes the state.
      kept_claim: The claim with the state; None: there is none.
    """

    place: str
    delete_state: str
    kept_claim: str | None = None


@takes_cluster
def undeploy(
    name: Annotated[str, typer.Argument(help="Name of the service.")],
    *,
    drain_timeout: DrainTimeout = 0,
    evict: Evict = False,
    delete_state: Annotated[
        bool,
        typer.Option(
            "--delete-state", help="Also delete the volume with its state, if it has one."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Wait so long for its pods to end.")
    ] = 120,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Delete a service once it has no connections, and wait until its pods have ended.

    The volume with its state is kept, for a service of this name, unless --delete-state is given.
    """
    options = _Options(
        drain_timeout_s=drain_timeout, evict=evict, delete_state=delete_state, timeout_s=timeout
    )
    done = run_undoing(_undeploy(place, name, options))
    kept = done.kept_claim
    if as_json:
        print_json(
            {"name": name, "namespace": place.namespace, "deleted": True, "kept_claim": kept}
        )
        return
    if kept is not None:
        print_note(
            f"the claim {kept} keeps the state for a new service {name}; `{done.delete_state}` "
            "deletes it"
        )
    print_line(f"deleted {name} in {done.place}")


async def _undeploy(place: Place, name: str, options: _Options) -> _Undeployed:
    """Deletes a service."""
    from shared_pathways_service.operations import (  # noqa: PLC0415 - aiohttp
        deployment,
        service_pages,
        state_claims,
    )
    from shared_pathways_service.operations.draining import drained  # noqa: PLC0415
    from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened  # noqa: PLC0415

    async with opened(place.in_cluster) as cluster:
        delete_state = cluster.sps("undeploy", name, "--delete-state")
        done = _Undeployed(place=cluster.place, delete_state=delete_state)
        try:
            jobset, _ = await deployment.jobset_of(cluster, name)
        except ServiceNotFound:
            # An earlier command may have left only its Lease, or its state.
            await _delete_lease(cluster, name)
            with contextlib.suppress(AccessDenied):
                await service_pages.delete_page(cluster, name)
            if options.delete_state and await state_claims.delete_state(
                cluster, name, timeout_s=options.timeout_s
            ):
                return done
            raise
        async with drained(
            cluster,
            jobset,
            why="it is being deleted",
            timeout_s=options.drain_timeout_s,
            evict=options.evict,
            note=print_note,
        ):
            await deployment.delete(cluster, jobset, timeout_s=options.timeout_s)
        await _delete_lease(cluster, name)
        # (An operator may not read what services without a page have no need of.)
        if service_pages.has_page(jobset):
            try:
                await service_pages.delete_page(cluster, name)
            except AccessDenied as error:
                print_note(error.message)
        if options.delete_state:
            await state_claims.delete_state(cluster, name, timeout_s=options.timeout_s)
            return done
        return dataclasses.replace(done, kept_claim=await _kept_claim(cluster, name))


async def _delete_lease(cluster: Cluster, name: str) -> None:
    from shared_pathways_service.operations import head_leases  # noqa: PLC0415 - aiohttp

    # (An operator may lack the permission. What is left then does no harm.)
    with contextlib.suppress(AccessDenied):
        await head_leases.delete_lease(cluster, name)


async def _kept_claim(cluster: Cluster, name: str) -> str | None:
    from shared_pathways_service.operations import state_claims  # noqa: PLC0415 - aiohttp

    # The service is gone already: whether its claim may be read does not matter.
    with contextlib.suppress(SharedPathwaysError):
        if await state_claims.find_claim(cluster, name) is not None:
            return claim_name(name)
    return None
