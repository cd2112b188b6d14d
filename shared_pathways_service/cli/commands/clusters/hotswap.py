"""`sps hotswap`: measures how a JobSet takes over the node pool of one with lower priority."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared_pathways_service.cli.display.output import (
    AsJson,
    print_json,
    print_line,
    print_note,
    print_table,
)
from shared_pathways_service.cli.options.cluster_options import Place, takes_cluster
from shared_pathways_service.cli.undoing import run_undoing
from shared_pathways_service.cluster_state.hotswap_watch import PHASES
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.hotswap_jobset import (
    HIGH,
    LOW,
    HotswapInputs,
    hotswap_jobset,
)
from shared_pathways_service.manifests.priority_classes import priority_classes

if TYPE_CHECKING:
    from shared_pathways_service.operations.hotswap import Hotswap, Report

__all__ = ["hotswap"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    high: HotswapInputs
    low: HotswapInputs
    create: bool
    disrupt: str | None
    restore: bool
    timeout_s: float


_Command = Annotated[
    str | None,
    typer.Option(help="Run this command in created JobSets; it is split as by a shell."),
]
_Restore = Annotated[
    bool,
    typer.Option(help="Uncordon the pool afterwards, and wait for the lower JobSet to return."),
]


@takes_cluster
def hotswap(
    *,
    high: Annotated[str, typer.Option(help="Name the JobSet of higher priority.")] = HIGH.name,
    low: Annotated[str, typer.Option(help="Name the JobSet of lower priority.")] = LOW.name,
    disrupt: Annotated[
        str | None,
        typer.Option(
            metavar="NODEPOOL",
            help="Drain this node pool of the higher JobSet. [default: wait until a node fails]",
        ),
    ] = None,
    restore: _Restore = True,
    create: Annotated[
        bool, typer.Option("--create", help="First create missing objects of the recipe.")
    ] = False,
    image: Annotated[str | None, typer.Option(help="Use this image in created JobSets.")] = None,
    command: _Command = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Wait so long in each step.")
    ] = 300,
    report: Annotated[bool, typer.Option("--report", help="Print a table of all phases.")] = False,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Drain a node pool of a high-priority JobSet, and measure how it moves and returns.

    docs/operations.md explains the recipe and its parts.
    """
    if not create and (image or command):
        raise InvalidRequestError(
            "--image, --command", image or command, "to be given only with --create"
        )
    if not restore and disrupt is None:
        raise InvalidRequestError("--no-restore", True, "to be given only with --disrupt")
    if high == low:
        raise InvalidRequestError("--low", low, "another JobSet than --high")
    program: dict[str, Any] = {"namespace": place.namespace}
    if image:
        program["image"] = image
    if command:
        program["command"] = _words("--command", command)
    options = _Options(
        high=dataclasses.replace(HIGH, name=high, takes_from=low, **program),
        low=dataclasses.replace(LOW, name=low, **program),
        create=create,
        disrupt=disrupt,
        restore=restore,
        timeout_s=timeout,
    )
    done = run_undoing(_hotswap(place, options))
    if as_json:
        print_json(done.to_json())
        return
    if report:
        rows = [(phase, f"{at:.1f}", PHASES[phase]) for phase, at in done.phases.items()]
        print_table(("phase", "seconds", "when"), rows)
    print_line(f"{high} was ready again after {done.high_back_s:.1f} s, on {', '.join(done.pools)}")
    if done.low_back_s is not None:
        print_line(f"{low} was ready again {done.low_back_s:.1f} s after the nodes were")
    for pool, pods in done.shared.items():
        print_line(f"{pool} had pods of both JobSets at the same time: {pods}")


async def _hotswap(place: Place, options: _Options) -> Report:
    from shared_pathways_service.operations import hotswap as hotswap_run  # noqa: PLC0415 - aiohttp
    from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened  # noqa: PLC0415

    high, low = options.high, options.low
    async with opened(place.in_cluster) as cluster:
        if options.create:
            wanted = [*priority_classes(), hotswap_jobset(low), hotswap_jobset(high)]
            for name in await hotswap_run.create_missing(cluster.api, place.namespace, wanted):
                print_note(f"created {name}")
        async with hotswap_run.following(
            cluster.api,
            place.namespace,
            high.name,
            low.name,
            on_phase=lambda p: print_note(PHASES[p]),
            on_cordoned=lambda nodes: print_note(f"cordoned a pool's nodes: {', '.join(nodes)}"),
        ) as running:
            try:
                return await _disrupt(running, options)
            finally:
                if nodes := running.closed:
                    # (Nodes have no namespace.)
                    command = cluster.api.access.commands.kubectl("uncordon", *nodes)
                    print_note(f"some nodes are still cordoned: run `{command}`")


async def _disrupt(running: Hotswap, options: _Options) -> Report:
    limit = options.timeout_s
    await running.wait_until_all_ready(timeout_s=limit)
    if options.disrupt is None:
        print_note(f"both JobSets are ready; waiting until a node of {options.high.name} fails")
        await running.wait_until_lost(timeout_s=limit)
        await running.wait_until_back(timeout_s=limit)
        return running.report()
    nodes = await running.drain(options.disrupt, timeout_s=limit)
    await running.wait_until_back(timeout_s=limit)
    if options.restore:
        await running.restore(nodes, timeout_s=limit)
    return running.report(options.disrupt)


def _words(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidRequestError(
            option, text, f"words that a shell could split ({error})"
        ) from error
