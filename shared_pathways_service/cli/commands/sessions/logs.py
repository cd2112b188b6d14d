"""`sps logs`: shows logs of a proxy, of the resource manager, or of the workers."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import find_entry
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.service_readers.base import LogRequest, ShowLine
from shared_pathways_service.runtime.settings import Settings

__all__ = ["logs"]


class _Choice(enum.StrEnum):
    PROXY = "proxy"
    RM = "rm"
    WORKER = "worker"


@takes_place
def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a connection; only --component=proxy needs one.",
            autocompletion=connection_names,
        ),
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new lines.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Show so many of each log's last lines.")
    ] = 100,
    component: Annotated[
        _Choice,
        typer.Option(help="Show the log of this component of the connection, or of its service."),
    ] = _Choice.PROXY,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show the log of a proxy, of the resource manager, or of the workers.

    If there are several logs, each line begins with the name of its process. Following a proxy's
    log ends with the proxy.
    """
    if name is None and component is _Choice.PROXY:
        raise InvalidRequestError(
            "NAME", None, "a connection, as in `sps list`, or --component=rm or worker"
        )
    place.request()
    settings = Settings.load()
    wanted = LogRequest(name=name or "", component=component.value, lines=lines, follow=follow)
    entry = find_entry(settings, name, place) if name else None
    if entry is not None:
        place = Place.of_service(entry)
    reader_of(place, settings).show_logs(wanted, _printer(as_json=as_json))


def _printer(*, as_json: bool) -> ShowLine:
    if as_json:
        return lambda source, line: print_json({"source": source, "line": line})
    return lambda source, line: print_line(f"{source}: {line}" if source else line)
