"""`sps profile`: profiles a running connection."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from shared_pathways_service.agent.journal import Entry, Journal, journal_directory
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_note
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.sessions import find_entry
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady
from shared_pathways_service.runtime.settings import Settings

__all__ = ["profile"]


@takes_place
def profile(
    name: Annotated[
        str,
        typer.Argument(help="Name of a connection.", autocompletion=connection_names),
    ],
    *,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="Seconds of the profile.")
    ] = 5.0,
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="Write to this directory, which TensorBoard is given as --logdir."
        ),
    ] = Path("sps-profile"),
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Profile a connection's proxy and its executors, while its program runs.

    It needs nothing of the program. The connection must have been made on this machine. Ctrl-C ends
    the profile, and writes nothing.
    """
    place.request()
    settings = Settings.load()
    entry = _serving(settings, name, place)
    token = Journal(journal_directory(settings)).token(entry.session)
    # (gRPC and JAX's files, which other commands need not load.)
    from shared_pathways_service.operations.connection_profiles import take_profile  # noqa: PLC0415

    if not as_json:
        print_note(f"profiling {name} for {seconds:g} s")
    taken = take_profile(name, entry.address, token, seconds=seconds, output=output)
    if as_json:
        directory = str(taken.directory.absolute())
        print_json({"name": name, **dataclasses.asdict(taken), "directory": directory})
        return
    for note in taken.notes:
        print_note(note)
    print_line(str(taken.directory))


def _serving(settings: Settings, name: str, place: Place) -> Entry:
    entry = find_entry(settings, name, place)
    if entry is None:
        raise ServiceNotFound(
            f"you have no connection {name} on this machine", hint="`sps list` shows yours"
        )
    if entry.is_elsewhere:
        where = entry.host or "another machine"
        raise ServiceNotReady(
            f"{name} is a connection of {where}", hint=f"run `sps profile {name}` there"
        )
    if not entry.agent.is_alive():
        raise ServiceNotReady(
            f"{name} is orphaned: its agent has ended", hint="`sps reap` deletes its proxy"
        )
    if not entry.address:
        raise ServiceNotReady(
            f"{name} has no proxy that serves yet: it is {entry.state}",
            hint="`sps list` shows its state",
        )
    return entry
