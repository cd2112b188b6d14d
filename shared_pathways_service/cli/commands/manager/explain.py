"""`sps explain`: why a tenant waits, was moved, was refused or ended."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.decision_lines import decision_dict, decision_line
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.manager_calls import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings

__all__ = ["explain"]


@takes_place
def explain(
    tenant: Annotated[
        str,
        typer.Argument(
            help="A connection, also one that is gone.", autocompletion=connection_names
        ),
    ],
    *,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show why a tenant waits, was moved, was refused or ended.

    The expected wait is an estimate from how long slices were held before.
    """
    place.request()
    told = asyncio.run(_read(place, tenant))
    if as_json:
        print_json(_as_dict(told))
        return
    for sentence in told.sentences:
        print_line(sentence)
    if told.decisions:
        print_line("\nWhat was decided of it last:")
    for decision in told.decisions:
        print_line(decision_line(decision))


async def _read(place: Place, tenant: str) -> pb.ExplainResponse:
    async with manager_of(place, Settings.load()) as manager:
        return await manager.ask(manager.stub.Explain, pb.ExplainRequest(tenant=tenant))


def _as_dict(told: pb.ExplainResponse) -> dict[str, Any]:
    has_wait = told.HasField("expected_wait_s")
    return {
        "tenant": told.tenant,
        "state": told.state,
        "time": told.time,
        "sentences": list(told.sentences),
        "position": told.position if told.HasField("position") else None,
        "wants": dict(told.wants),
        "free": dict(told.free),
        "holders": [
            {
                "tenant": one.tenant,
                "user": one.user or None,
                "host": one.host or None,
                "slice": one.slice_id,
                "instance_type": one.instance_type,
                "since": one.since,
                "held_s": one.held_s,
            }
            for one in told.holders
        ],
        "ahead": list(told.ahead),
        "expected_wait_s": told.expected_wait_s if has_wait else None,
        "expected_wait_basis": told.expected_wait_basis or None,
        "decisions": [decision_dict(one) for one in told.decisions],
    }
