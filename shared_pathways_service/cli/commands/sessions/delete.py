"""`sps delete`: ends a connection from outside, or removes the files of a job that has ended."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from shared_pathways_service.agent.journal import (
    SILENT_AGE_S,
    Entry,
    Journal,
    journal_directory,
)
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.cli.commands.sessions.reap import why_not_reaped
from shared_pathways_service.cli.display.output import AsJson, print_aside, print_json, print_line
from shared_pathways_service.cli.errors import FAILED, INTERRUPTED
from shared_pathways_service.cli.lookups.completion import names_of_logs
from shared_pathways_service.cli.lookups.jobs_of_place import find_job, job_home_of
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import (
    clean_up_entries,
    find_entry,
    forget_entry,
)
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.service_readers.base import ServiceReader
from shared_pathways_service.runtime.settings import Settings

__all__ = ["delete"]


@takes_place
def delete(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the connection or job, as in `sps list`.", autocompletion=names_of_logs
        ),
    ],
    *,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask, even if its program may still run."),
    ] = False,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Only remove a connection of yours from the list, if its program has ended and "
            "its cluster no longer exists or cannot be reached. Its proxy ends at its deadline.",
        ),
    ] = False,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """End a connection: delete its proxy, and release its slices. Or forget an ended job.

    Work on its slices is lost. Its program is notified that the proxy was deleted. Of a submitted
    job that has ended, its output and its entry in `sps list` are removed.
    """
    settings = Settings.load()
    entry = find_entry(settings, name, place)
    # (In a cluster, a job is no connection of this machine.)
    may_be_job = not forget and (entry is None or place.home == "embedded")
    if may_be_job and find_job(place, name):
        job_home_of(place).delete(name)
        deleted = True
    elif forget:
        _forget(settings, name, entry)
        deleted = False
    elif entry is not None:
        deleted = _delete_own(settings, entry, yes=yes)
    else:
        reader = reader_of(place, settings)
        deleted = asyncio.run(_delete_by_name(settings, name, reader, yes=yes))
    if as_json:
        print_json({"name": name, "deleted": deleted} | ({"forgotten": True} if forget else {}))
    elif forget:
        print_line(f"forgot {name}")
    else:
        print_line(f"deleted {name}" if deleted else f"{name} had already ended")


def _forget(settings: Settings, name: str, entry: Entry | None) -> None:
    if entry is None or (why := _why_not_forgotten(settings, entry)):
        # (A live program or agent would write the entry again.)
        why = why if entry else "there is none"
        raise InvalidRequestError(
            "--forget", name, "a connection of yours whose program has ended", hint=why
        )
    forget_entry(settings, entry)


def _why_not_forgotten(settings: Settings, entry: Entry) -> str:
    if not entry.is_elsewhere:
        return "" if entry.abandoned else f"process {entry.owner.pid} or its agent still runs"
    silent_s = Journal(journal_directory(settings)).silent_s(entry.session)
    if silent_s >= SILENT_AGE_S:
        return ""
    return f"its agent on {entry.host or 'another machine'} was active {silent_s:.0f} s ago"


def _delete_own(settings: Settings, entry: Entry, *, yes: bool) -> bool:
    owner, host = f"process {entry.owner.pid}", entry.host or "another machine"
    if entry.is_elsewhere:
        owner += f" on {host}"
        if entry.home.name == "embedded":
            raise InvalidRequestError(
                "NAME",
                entry.name,
                "a connection of this machine",
                message=f"{entry.name} is a connection to the embedded service of {host}",
                hint=f"run `sps delete {entry.name}` there; if {host} is gone for good, "
                "--forget strikes it off the list",
            )
    if not entry.owner.has_ended() and not yes:
        _confirm(f"{entry.name} is in use by {owner}, which would lose its work")
    left = clean_up_entries(settings, [entry])
    if left is not None:
        raise left
    return True


async def _delete_by_name(
    settings: Settings, name: str, reader: ServiceReader, *, yes: bool
) -> bool:
    async with reader.proxies() as proxies:
        proxy = await proxies.proxy(name)
        if not yes:
            _confirm_proxy(settings, proxy, proxies.server_time)
        return await proxies.delete(proxy)


def _confirm_proxy(settings: Settings, proxy: KnownProxy, now: float) -> None:
    why = why_not_reaped(settings, proxy, now)
    if not why or proxy.state == "ended":
        return
    whose = "yours" if proxy.holder.user == user_name() else f"{proxy.holder.user or 'unknown'}'s"
    _confirm(f"{proxy.name} ({whose}, on {proxy.holder.host or 'an unknown host'}): {why}")


def _confirm(what: str) -> None:
    """Asks for confirmation; returns if the answer is yes.

    Raises:
      InvalidRequestError: Standard input is not a terminal.
      typer.Exit: The answer is no.
    """
    if not sys.stdin.isatty():
        hint = "--yes deletes it nevertheless"
        raise InvalidRequestError("--yes", False, "True", message=what, hint=hint)
    try:
        sure = typer.confirm(f"{what}. Delete it?", err=True)
    except typer.Abort:  # Ctrl-C, or a closed terminal
        raise typer.Exit(INTERRUPTED) from None
    if not sure:
        print_aside("nothing was deleted")
        raise typer.Exit(FAILED)
