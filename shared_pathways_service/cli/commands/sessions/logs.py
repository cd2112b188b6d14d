"""`sps logs`: shows logs of a proxy, of the resource manager, or of the workers."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections.abc import Callable
from typing import Annotated

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.log_files import Component, find_logs, read_logs
from shared_pathways_service.cli.lookups.sessions import find_entry
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
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
    wanted: Component = component.value
    show = _printer(as_json=as_json)
    entry = find_entry(settings, name, place) if name else None
    if entry is not None and entry.home.name == "kubernetes":
        place = Place.of(entry)
    if place.is_cluster:
        service = entry.service if entry is not None else ""
        reading = _Reading(name=name or "", component=wanted, lines=lines, follow=follow)
        asyncio.run(_show_pods(place, reading, service, show))
    else:
        found = find_logs(settings, name or "", wanted)
        read_logs(found, lines, show, follow=follow)


#: Called with the line's source (empty if there is only one) and the line.
_Show = Callable[[str, str], None]


def _printer(*, as_json: bool) -> _Show:
    if as_json:
        return lambda source, line: print_json({"source": source, "line": line})
    return lambda source, line: print_line(f"{source}: {line}" if source else line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reading:
    """The logs to read."""

    name: str
    component: Component
    lines: int
    follow: bool


async def _show_pods(place: Place, wanted: _Reading, service: str, show: _Show) -> None:
    # Slow imports that only a cluster needs.
    from shared_pathways_service.cli.lookups.open_cluster import opened  # noqa: PLC0415
    from shared_pathways_service.cli.lookups.pod_logs import PodLogs, pods_of  # noqa: PLC0415

    async with opened(place) as cluster:
        pods = await pods_of(cluster, wanted.component, name=wanted.name, service=service)
        reader = PodLogs(cluster.api, cluster.namespace, pods, show)
        await (reader.follow(wanted.lines) if wanted.follow else reader.read(wanted.lines))
