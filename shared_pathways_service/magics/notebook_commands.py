"""Commands of ``%sps`` that act in the notebook's own process."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, get_type_hints

import typer

from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cli.options.option_groups import takes_group
from shared_pathways_service.cli.options.run_options import RunOptions
from shared_pathways_service.connection import Connection, one_live
from shared_pathways_service.errors import ConnectionClosed, InvalidRequestError

__all__ = ["connect", "live_connection", "release"]

#: Options of `sps run` that are about its program.
_OF_PROGRAMS = ("json_events", "tune_allocator")
_OPTIONS = {
    name: option
    for name, option in get_type_hints(RunOptions, include_extras=True).items()
    if name not in _OF_PROGRAMS
}


def live_connection() -> Connection | None:
    """Returns this process's live connection, whoever started it."""
    live = one_live.live_owner()
    return live if isinstance(live, Connection) else None


def _connect(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TYPE=COUNT]...",
            help="Request these slices, e.g. tpuv6e:2x2=2; as with --slices.",
            show_default=False,
        ),
    ] = None,
    *,
    options: RunOptions,
    place: Place,
) -> Connection:
    """Connect this notebook's JAX to slices, until `%sps release` or the end of the kernel.

    The connection is also the value: connection = %sps connect ... A line that is run again returns
    the live connection, if the request is the same.
    """
    from IPython.display import display  # noqa: PLC0415 - only ever called by IPython

    wanted = [*(words or ()), *(options.slices or ())]
    request = place.request(**dataclasses.replace(options, slices=wanted or None).keywords())
    connection = Connection(request)
    live = live_connection()
    if live is None or live.status().error is not None:
        display(connection)  # type: ignore[no-untyped-call]
    try:
        connection = connection.start()
    except InvalidRequestError as error:
        if live is not None:
            error.hint = error.hint and "%sps release ends it"
        raise
    display(connection)  # type: ignore[no-untyped-call]
    return connection


connect = takes_place(takes_group(_connect, "options", RunOptions, _OPTIONS))


def release() -> None:
    """Release the slices of this notebook's connection, whoever started it."""
    connection = live_connection()
    if connection is None:
        raise ConnectionClosed("this notebook has no connection", hint="%sps connect starts one")
    connection.close()
    sys.stdout.write(f"{connection.proxy_job_name} is released\n")
