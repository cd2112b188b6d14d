"""`sps logs`: shows logs of a job, a proxy, its executors, the resource manager or the workers."""

from __future__ import annotations

import enum
from typing import Annotated, cast

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.completion import names_of_logs
from shared_pathways_service.cli.lookups.jobs_of_place import find_job, job_home_of
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import place_of_tenant
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.service_readers.base import (
    Component,
    LogRequest,
    ShowLine,
)
from shared_pathways_service.runtime.settings import Settings

__all__ = ["logs"]


class _Choice(enum.StrEnum):
    JOB = "job"
    PROXY = "proxy"
    RM = "rm"
    WORKER = "worker"
    EXECUTOR = "executor"


#: Components that belong to one connection.
_OF_CONNECTION = frozenset({_Choice.JOB, _Choice.PROXY, _Choice.EXECUTOR})


@takes_place
def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a job or a connection; --component=job, proxy and executor need one.",
            autocompletion=names_of_logs,
        ),
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new lines.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Show so many of each log's last lines.")
    ] = 100,
    component: Annotated[
        _Choice | None,
        typer.Option(
            help="Show the log of this component of the connection, or of its service. "
            "[default: job for a submitted job, otherwise proxy]"
        ),
    ] = None,
    host: Annotated[
        int | None,
        typer.Option(
            min=0, help="With --component=executor: only on this host of each slice, from 0."
        ),
    ] = None,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show the output of a job, or the log of a proxy, executors, the resource manager or workers.

    If there are several logs, each line begins with the name of its process. Following a log ends
    with the job or the proxy.
    """
    if host is not None and component is not _Choice.EXECUTOR:
        raise InvalidRequestError("--host", host, "used with --component=executor")
    if name is None and (component is None or component in _OF_CONNECTION):
        raise InvalidRequestError(
            "NAME", None, "a job or a connection, as in `sps list`, or --component=rm or worker"
        )
    place.request()
    if name and (component is _Choice.JOB or (component is None and find_job(place, name))):
        _show_output(place, name, lines, _printer(as_json=as_json), follow=follow)
        return
    component = component or _Choice.PROXY
    settings = Settings.load()
    service_part = cast("Component", component.value)
    wanted = LogRequest(
        name=name or "", component=service_part, lines=lines, follow=follow, host=host
    )
    place = place_of_tenant(settings, name, place)
    reader_of(place, settings).show_logs(wanted, _printer(as_json=as_json))


def _show_output(place: Place, name: str, lines: int, show: ShowLine, *, follow: bool) -> None:
    home = job_home_of(place)
    if follow:
        home.follow(name, lines, lambda line: show("", line), lambda _status: None)
        return
    for line in home.output(name, lines):
        show("", line)


def _printer(*, as_json: bool) -> ShowLine:
    if as_json:
        return lambda source, line: print_json({"source": source, "line": line})
    return lambda source, line: print_line(f"{source}: {line}" if source else line)
