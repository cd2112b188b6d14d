"""`sps explain`: explains why a tenant waits, was moved, was refused or ended."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.decision_lines import decision_dict, decision_line
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.lookups.sessions import place_of_tenant
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings

__all__ = ["explain"]


@takes_place
def explain(
    tenant: Annotated[
        str,
        typer.Argument(
            help="Name of a connection, also of one that has ended.",
            autocompletion=connection_names,
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
    place = place_of_tenant(Settings.load(), tenant, place)
    answer = asyncio.run(_read(place, tenant))
    if as_json:
        print_json(_as_dict(answer))
        return
    for sentence in answer.sentences:
        print_line(sentence)
    if answer.decisions:
        print_line("\nLatest decisions:")
    for decision in answer.decisions:
        print_line(decision_line(decision))


async def _read(place: Place, tenant: str) -> pb.ExplainResponse:
    async with manager_of(place, Settings.load()) as manager:
        return await manager.ask(manager.stub.Explain, pb.ExplainRequest(tenant=tenant))


def _as_dict(answer: pb.ExplainResponse) -> dict[str, Any]:
    has_wait = answer.HasField("expected_wait_s")
    return {
        "tenant": answer.tenant,
        "state": answer.state,
        "time": answer.time,
        "sentences": list(answer.sentences),
        "position": answer.position if answer.HasField("position") else None,
        "wants": dict(answer.wants),
        "free": dict(answer.free),
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
            for one in answer.holders
        ],
        "ahead": list(answer.ahead),
        "expected_wait_s": answer.expected_wait_s if has_wait else None,
        "expected_wait_basis": answer.expected_wait_basis or None,
        "decisions": [decision_dict(one) for one in answer.decisions],
    }
