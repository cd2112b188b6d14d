"""`sps replay`: runs recorded events of a resource manager again, and compares the decisions."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.errors import FAILED
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.scheduling.event_log import Replay
from shared_pathways_service.scheduling.event_log import replay as run_again

__all__ = ["replay"]


@takes_place
def replay(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A log of --record_events. [default: that of the running service]",
            show_default=False,
        ),
    ] = None,
    *,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the running service's log to this file."),
    ] = None,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Run recorded events again, and compare the decisions with the recorded ones.

    Exit code 1: this release makes another decision.
    """
    place.request()
    if file is None:
        text = asyncio.run(_export(place))
        if save is not None:
            save.write_text(text)
    elif save is not None:
        raise InvalidRequestError(
            "--save", str(save), "to be given without FILE, which is saved already"
        )
    else:
        text = file.read_text(errors="replace")
    try:
        found = run_again(text.splitlines())
    except ValueError as error:
        raise InvalidRequestError("FILE", str(file or ""), f"a log of events ({error})") from error
    if as_json:
        print_json({"identical": found.difference is None, **dataclasses.asdict(found)})
    else:
        _print(found)
    if found.difference is not None:
        raise typer.Exit(FAILED)


async def _export(place: Place) -> str:
    async with manager_of(place, Settings.load()) as manager, manager.translating():
        pages = manager.stub.ExportLog(
            pb.ExportLogRequest(),
            metadata=manager.metadata,
            timeout=timeouts.WHOLE_HISTORY.s,
            wait_for_ready=True,
        )
        return "".join([page.text async for page in pages])


def _print(found: Replay) -> None:
    run = f"{found.events} events of {found.epochs} epochs, {found.decisions} decisions"
    if found.difference is None:
        print_line(f"identical: {run}")
        return
    where = f"line {found.difference.line} ({found.difference.event})"
    print_line(f"different at {where}, after {run}")
    for title, sentences in (
        ("recorded", found.difference.recorded),
        ("decided now", found.difference.made),
    ):
        print_line(f"{title}:")
        for sentence in sentences or ("nothing",):
            print_line(f"  {sentence}")
