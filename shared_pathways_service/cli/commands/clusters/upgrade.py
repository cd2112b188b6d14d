"""`sps upgrade`: recreates a service in a cluster with changes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

import typer

from shared_pathways_service.cli.commands.clusters.deploy import (
    DryRun,
    Timeout,
    deployed_json,
    print_deployed,
    with_defaults,
)
from shared_pathways_service.cli.display.deploy_display import display
from shared_pathways_service.cli.display.manifest_text import print_manifests, yaml_text
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_note
from shared_pathways_service.cli.options.cluster_options import Place, takes_cluster
from shared_pathways_service.cli.options.draining_options import DrainTimeout, Evict
from shared_pathways_service.cli.options.service_options import ServiceOptions, takes_service
from shared_pathways_service.cli.undoing import run_undoing
from shared_pathways_service.cluster_state.readiness import Look, ServiceReadiness
from shared_pathways_service.cluster_state.service_reading import (
    difference,
    manifest_of,
    read_inputs,
    recorded_spec,
)
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_objects
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.settings import Settings

if TYPE_CHECKING:
    from shared_pathways_service.operations.cluster_access import Cluster, Object
    from shared_pathways_service.operations.service_objects import NewObjects

__all__ = ["upgrade"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    """Options other than those of the service itself."""

    drain_timeout_s: float
    evict: bool
    discard_changes: bool
    timeout_s: float
    dry_run: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Upgraded:
    """The result of an upgrade; `found` is None if the service was not created again."""

    inputs: ServiceInputs
    found: ServiceReadiness | None = None
    has_changed_page: bool = False


@takes_service
@takes_cluster
def upgrade(
    name: Annotated[str, typer.Argument(help="Name of the service.")],
    *,
    drain_timeout: DrainTimeout = 0,
    evict: Evict = False,
    discard_changes: Annotated[
        bool,
        typer.Option(
            "--discard-changes",
            help="Recreate the JobSet even if it is not as it was deployed.",
        ),
    ] = False,
    timeout: Timeout = 900,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    place: Place,
    wanted: ServiceOptions,
) -> None:
    """Recreate a service with changes, once it has no connections.

    A JobSet cannot be changed in place: it is deleted, and created under the same name and address.
    Settings that are not given stay as they are. With options of its page alone (--ui, --no-ui) the
    service goes on.
    """
    options = _Options(
        drain_timeout_s=drain_timeout,
        evict=evict,
        discard_changes=discard_changes,
        timeout_s=timeout,
        dry_run=dry_run,
    )
    began = time.monotonic()
    with display(quiet=as_json) as look:
        done = run_undoing(_upgrade(place, name, wanted, options, look))
    seconds = time.monotonic() - began
    if dry_run:
        print_manifests(service_objects(done.inputs), as_json=as_json)
    elif as_json:
        changed = done.found is not None or done.has_changed_page
        print_json({**deployed_json(done.inputs, done.found, seconds), "changed": changed})
    elif done.has_changed_page:
        page = done.inputs.page
        print_line(f"{name} has no page now" if page is None else f"the page is at {page.url}")
    elif done.found is None:
        print_line(f"{name} already has these settings")
    else:
        print_deployed(done.inputs, place, done.found, seconds)


async def _upgrade(
    place: Place, name: str, wanted: ServiceOptions, options: _Options, look: Look
) -> _Upgraded:
    fields = wanted.fields_but_page()
    wanted.check_page()
    from shared_pathways_service.operations import (  # noqa: PLC0415 - aiohttp
        deployment,
        head_leases,
        service_pages,
        state_claims,
    )
    from shared_pathways_service.operations.draining import drained  # noqa: PLC0415
    from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened  # noqa: PLC0415

    async with opened(place.in_cluster) as cluster:
        jobset, service = await deployment.jobset_of(cluster, name)
        before = read_inputs(jobset, service, has_page=wanted.ui is not False)
        page = wanted.page_field(before.page)
        after = dataclasses.replace(before, **fields, **page)
        where = ""
        changes_page_only = dataclasses.replace(after, page=before.page) == before
        # (With options of the page alone, what else this release would change stays as it is.)
        if (fields or not page) and (changes_page_only or not options.discard_changes):
            where = await _where_it_differs(cluster, jobset, before, options)
        if options.dry_run:
            return _Upgraded(inputs=after)
        if changes_page_only and not where:
            # (Its tenants do not notice.)
            changed = await service_pages.change_page(cluster, jobset, after)
            return _Upgraded(inputs=after, has_changed_page=changed)
        await deployment.check_priority_class(cluster, after.priority_class)
        async with _undone_if_kept(cluster, jobset, before) as new:
            # A service whose volume is taken away, or of an earlier release, gets a Lease.
            given = {*fields, "state_size", "verify_users"}
            await service_pages.check_page(cluster, after)
            after = await with_defaults(cluster, after, given, new)
            # The cluster must accept the new JobSet before the old one is deleted.
            await deployment.try_to_create(cluster, after)
            await head_leases.ensure_lease(cluster, after, new)
            async with (
                state_claims.claimed(cluster, after),
                drained(
                    cluster,
                    jobset,
                    why="it is being upgraded",
                    timeout_s=options.drain_timeout_s,
                    evict=options.evict,
                    note=print_note,
                ),
            ):
                if after.page is None:
                    # While the JobSet still tells that there is one.
                    await service_pages.settle_page(cluster, jobset, after)
                await _replace(cluster, jobset, after)
        await service_pages.ensure_page(cluster, after)
        found = await deployment.wait_until_ready(
            cluster, name, Settings.load(), timeout_s=options.timeout_s, look=look
        )
        return _Upgraded(inputs=after, found=found)


@contextlib.asynccontextmanager
async def _undone_if_kept(
    cluster: Cluster, jobset: Object, before: ServiceInputs
) -> AsyncGenerator[NewObjects, None]:
    """Deletes what the block created for a Lease if it fails and the old service is still there."""
    from shared_pathways_service.operations import deployment  # noqa: PLC0415 - aiohttp
    from shared_pathways_service.operations.service_objects import NewObjects  # noqa: PLC0415

    new = NewObjects(cluster)
    try:
        yield new
    except BaseException:
        # (The old service may need what was missing of its own Lease, and the service of a
        # concurrent upgrade may use what this one created.)
        if not before.lease:
            with contextlib.suppress(SharedPathwaysError):
                now, _ = await deployment.jobset_of(cluster, before.name)
                if now["metadata"]["uid"] == jobset["metadata"]["uid"]:
                    await new.undo()
        raise


async def _where_it_differs(
    cluster: Cluster, jobset: Object, before: ServiceInputs, options: _Options
) -> str:
    """Returns where a JobSet differs from the one that this release makes; empty: nowhere."""
    from shared_pathways_service.operations import deployment  # noqa: PLC0415 - aiohttp

    # A dry run under a free name, so that the cluster's webhooks add their defaults.
    made = await deployment.try_to_create(cluster, before)
    where = difference(made["spec"], jobset["spec"])
    if where and not options.discard_changes:
        await _check_unchanged(cluster, jobset, before, where)
        print_note(
            f"this release deploys {before.name} with another manifest, which differs at {where}; "
            "the upgrade applies it"
        )
    return where


async def _check_unchanged(
    cluster: Cluster, jobset: Object, before: ServiceInputs, where: str
) -> None:
    """Refuses an upgrade that would lose manual changes of the JobSet.

    Args:
      cluster: The cluster.
      jobset: The service's JobSet.
      before: Its inputs.
      where: Where it differs from the JobSet that this release makes of them.
    """
    from shared_pathways_service.operations import deployment  # noqa: PLC0415 - aiohttp

    name = before.name
    if (sent := recorded_spec(jobset)) is None:
        message = (
            f"the JobSet {name} differs at {where} from what this release deploys: it was changed "
            "by hand, which would be lost, or deployed by another release"
        )
    else:
        deployed = await deployment.try_to_create(cluster, before, sent)
        changed = difference(deployed["spec"], jobset["spec"])
        if not changed:
            return
        message = (
            f"the JobSet {name} differs at {changed} from what was deployed: it was changed by "
            "hand, which would be lost, or the cluster's defaults have changed"
        )
    raise InvalidRequestError(
        "NAME",
        name,
        "a service as `sps deploy` creates it",
        message=message,
        hint="--discard-changes recreates it nevertheless",
    )


async def _replace(cluster: Cluster, jobset: Object, after: ServiceInputs) -> None:
    from shared_pathways_service.operations import deployment  # noqa: PLC0415 - aiohttp

    try:
        await deployment.delete(cluster, jobset, timeout_s=timeouts.OLD_PODS_END.s)
        await deployment.create(cluster, after)
    except BaseException:
        # Also on an interrupt: between the two calls there is no service.
        await _restore(cluster, jobset)
        raise


async def _restore(cluster: Cluster, jobset: Object) -> None:
    """Creates the old JobSet again if there is none now, or prints its manifest."""
    from shared_pathways_service.operations import deployment  # noqa: PLC0415 - aiohttp

    name = str(jobset["metadata"]["name"])
    try:
        if await deployment.exists(cluster, name):
            return
        await deployment.create_again(cluster, jobset)
    except SharedPathwaysError as error:
        command = cluster.kubectl("create", "-f", "-")
        # The old manifest exists nowhere else.
        print_note(
            f"there may be no service {name} now, and the old one could not be created again: "
            f"{error.message}\nsps: this is its manifest, for `{command}`:\n"
            f"{yaml_text(manifest_of(jobset)).rstrip()}"
        )
    else:
        print_note(f"the new {name} was not created; the old one was created again")
