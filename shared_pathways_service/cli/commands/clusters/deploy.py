"""`sps deploy`: creates a service in a cluster."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared_pathways_service.cli.display.deploy_display import display
from shared_pathways_service.cli.display.manifest_text import print_manifests
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_note
from shared_pathways_service.cli.options.cluster_options import Place, takes_cluster
from shared_pathways_service.cli.options.service_options import ServiceOptions, takes_service
from shared_pathways_service.cluster_state.readiness import Look, ServiceReadiness
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.names import instances_text
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_address, service_objects
from shared_pathways_service.runtime.settings import Settings

if TYPE_CHECKING:
    from shared_pathways_service.operations.cluster_access import Cluster
    from shared_pathways_service.operations.service_objects import NewObjects

__all__ = ["DryRun", "Timeout", "deploy", "deployed_json", "print_deployed", "with_defaults"]

#: Options that `sps upgrade` has too.
Timeout = Annotated[
    float,
    typer.Option(min=1, metavar="SECONDS", help="Wait so long for all slices to become ready."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print the objects that would be created.")
]


@takes_service
@takes_cluster
def deploy(
    name: Annotated[
        str | None, typer.Argument(help="Name of the service, new in its namespace.")
    ] = None,
    *,
    jobset_name: Annotated[
        str | None,
        typer.Option("--jobset-name", metavar="NAME", help="Name the service, as upstream does."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until all slices are ready.")] = True,
    timeout: Timeout = 900,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    place: Place,
    wanted: ServiceOptions,
) -> None:
    """Create a service in a cluster, and wait until all its slices are ready.

    Without --cluster and --context the kubeconfig's current context names the cluster.
    """
    fields = wanted.fields()
    if "instances" not in fields:
        raise InvalidRequestError("--slices", None, "TYPE=COUNT, e.g. tpuv6e:2x2=2")
    inputs = ServiceInputs(name=_name(name, jobset_name), namespace=place.namespace, **fields)
    if dry_run:
        if "state_size" not in fields and is_ours(inputs.image):
            print_note(
                "the service also gets a volume for its state if the cluster has a default "
                "StorageClass, otherwise a Lease: --state-size and --lease show them"
            )
        print_manifests(service_objects(inputs), as_json=as_json)
        return
    began = time.monotonic()
    with display(quiet=as_json) as look:
        inputs, found = asyncio.run(
            _deploy(
                place,
                inputs,
                given=fields.keys(),
                timeout_s=timeout if wait else None,
                look=look,
            )
        )
    seconds = time.monotonic() - began
    if as_json:
        print_json(deployed_json(inputs, found, seconds))
    else:
        print_deployed(inputs, place, found, seconds)


def _name(name: str | None, jobset_name: str | None) -> str:
    """Returns the service's name from either of its two options."""
    if name is not None and jobset_name is not None:
        raise InvalidRequestError("--jobset-name", jobset_name, f"either it or NAME={name!r}")
    found = jobset_name if name is None else name
    if found is None:
        raise InvalidRequestError("NAME", None, "the service's name, or --jobset-name NAME")
    return found


def deployed_json(
    inputs: ServiceInputs, found: ServiceReadiness | None, seconds: float
) -> dict[str, Any]:
    """Returns the output of ``--json`` for a created service.

    Args:
      inputs: The service's inputs.
      found: Its readiness; None: not waited for.
      seconds: Seconds from start to end.
    """
    return {
        "name": inputs.name,
        "namespace": inputs.namespace,
        "address": service_address(inputs.name),
        "image": inputs.image,
        "slices": {str(kind): count for kind, count in inputs.counts.items()},
        "state_size": inputs.state_size or None,
        "ui": None if inputs.page is None else inputs.page.url,
        "ready": None if found is None else found.ready,
        "wanted": sum(inputs.counts.values()),
        "seconds": round(seconds, 3),
    }


def print_deployed(
    inputs: ServiceInputs, place: Place, found: ServiceReadiness | None, seconds: float
) -> None:
    """Prints the name of a created service, and how to connect to it."""
    kinds = [str(kind) for kind, count in inputs.counts.items() for _ in range(count)]
    how = "was created" if found is None else f"is ready after {seconds:.1f} s"
    print_note(f"{inputs.name} with {instances_text(kinds)} {how}; connect with")
    where = f'context="{place.context}", ' if place.context else ""
    if place.cluster:
        names = ("cluster", "project", "region")
        where = "".join(f'{name}="{getattr(place, name)}", ' for name in names)
    if inputs.namespace != "default":
        where += f'namespace="{inputs.namespace}", '
    print_note(f'  isc_pathways.connect({where}pathways_service="{service_address(inputs.name)}")')
    if inputs.page is not None:
        print_note(f"its page is at {inputs.page.url}")
    # For a script, the address alone.
    print_line(service_address(inputs.name))


async def with_defaults(
    cluster: Cluster, inputs: ServiceInputs, given: Collection[str], new: NewObjects
) -> ServiceInputs:
    """Adds the inputs that were not given and depend on the cluster; says what is missing.

    What is created for them is added to `new`.
    """
    from shared_pathways_service.operations import (  # noqa: PLC0415 - aiohttp
        deployment,
        head_leases,
        program_claims,
        state_claims,
    )

    if inputs.verify_users:
        await deployment.check_verification(cluster)
    await program_claims.check_programs(cluster, inputs)
    for field, with_default, note in (
        (
            "state_size",
            state_claims.with_state,
            (
                "{}: the resource manager loses history, cordons and reservations when its pod "
                "ends (--state-size 1Gi --storage-class NAME keeps them on a volume)"
            ),
        ),
        (
            "lease",
            functools.partial(head_leases.with_lease, new=new),
            (
                "{}: while a lost node still runs an old head, two heads may decide (`sps render "
                "operator-rbac` has the permissions for a Lease)"
            ),
        ),
        (
            "verify_users",
            deployment.with_verification,
            (
                "users are not verified, so that a tenant may name another user: {} "
                "(--no-verify-users accepts that)"
            ),
        ),
    ):
        if field not in given:
            inputs, why_not = await with_default(cluster, inputs)
            if why_not:
                print_note(note.format(why_not))
    return inputs


async def _deploy(
    place: Place,
    inputs: ServiceInputs,
    *,
    given: Collection[str],
    timeout_s: float | None,
    look: Look,
) -> tuple[ServiceInputs, ServiceReadiness | None]:
    from shared_pathways_service.operations import (  # noqa: PLC0415 - aiohttp
        deployment,
        head_leases,
        service_pages,
        state_claims,
    )
    from shared_pathways_service.operations.service_objects import (  # noqa: PLC0415
        NewObjects,
        undone_if_refused,
    )
    from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened  # noqa: PLC0415

    async with opened(place.in_cluster) as cluster:
        await deployment.check_priority_class(cluster, inputs.priority_class)
        new = NewObjects(cluster)
        undo = functools.partial(new.undo_unless_used, inputs.name)
        async with undone_if_refused(cluster, inputs.name, undo):
            inputs = await with_defaults(cluster, inputs, given, new)
            await head_leases.ensure_lease(cluster, inputs, new)
            await service_pages.check_page(cluster, inputs)
            async with state_claims.claimed(cluster, inputs):
                await deployment.create(cluster, inputs)
            # A concurrent deploy that was refused may have deleted what was found.
            await head_leases.ensure_lease(cluster, inputs, new)
        # (Not before: a service of this name may have had a page.)
        try:
            await service_pages.ensure_page(cluster, inputs)
        except SharedPathwaysError:
            again = cluster.sps("upgrade", inputs.name)
            print_note(f"{inputs.name} is created, without its whole page; `{again}` creates that")
            raise
        if timeout_s is None:
            return inputs, None
        print_note(f"{inputs.name} is created, and remains if you interrupt this command")
        found = await deployment.wait_until_ready(
            cluster,
            inputs.name,
            Settings.load(),
            timeout_s=timeout_s,
            look=look,
        )
        return inputs, found
