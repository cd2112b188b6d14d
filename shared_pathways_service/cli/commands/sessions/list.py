"""`sps list`: lists connections, from the journal and a cluster's labels, and submitted jobs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from shared_pathways_service.agent.journal import Entry, journal_entries
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.api.job_requests import JobStatus
from shared_pathways_service.cli.display.moments import ago
from shared_pathways_service.cli.display.output import (
    AsJson,
    print_error,
    print_json,
    print_line,
    print_table,
)
from shared_pathways_service.cli.lookups.jobs_of_place import job_fields, job_text, jobs_of
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import (
    clean_up_entries,
    link_of,
)
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.operations.service_readers.base import ServiceReader
from shared_pathways_service.runtime.settings import Settings

__all__ = ["ListedConnection", "list_connections"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedConnection:
    """A connection, or a submitted job, as `sps list --json` shows it.

    Attributes:
      slices: Slices by instance type; null if the service's first type was requested.
      state: The session's phase, on another machine the last one that it wrote; ``orphaned`` if
        its agent has ended and its owner has not. For other users' proxies, as in `KnownProxy`; for
        jobs without a connection, as in `JobStatus`.
      pid: The owner's process, on `host`.
      link: The resumable link to the proxy: `LinkView` with times as RFC 3339; null: it is not
        resumable, was not lost yet, or its agent is on another machine.
      job: The submitted job of this name, as `JobStatus`; null: none.
    """

    name: str
    home: str
    namespace: str | None
    service: str | None
    slices: dict[str, int] | None
    state: str
    since: str
    host: str | None
    pid: int | None
    user: str | None
    link: dict[str, Any] | None
    job: dict[str, Any] | None = None

    @classmethod
    def of(cls, entry: Entry) -> ListedConnection:
        """Converts an entry of the journal."""
        link = link_of(entry)
        return cls(
            name=entry.name,
            home=entry.home.name,
            namespace=entry.namespace or None,
            service=entry.service or None,
            slices=dict(Counter(entry.slices)) or None,
            state="orphaned" if entry.agent.has_ended() else entry.state,
            since=entry.since,
            host=entry.host or None,
            pid=entry.owner.pid,
            user=entry.user or None,
            link=None if link is None else link.as_fields(),
        )

    @classmethod
    def of_proxy(cls, proxy: KnownProxy, home: str) -> ListedConnection:
        """Converts a proxy of a home."""
        return cls(
            name=proxy.name,
            home=home,
            namespace=proxy.namespace,
            service=proxy.holder.service or None,
            slices=proxy.slices or None,
            state=proxy.state,
            since=proxy.since,
            host=proxy.holder.host or None,
            pid=proxy.pid or None,
            user=proxy.holder.user or None,
            link=None,
        )

    @classmethod
    def of_job(cls, job: JobStatus) -> ListedConnection:
        """Converts a submitted job without a connection."""
        return cls(
            name=job.name,
            home=job.home,
            namespace=None,
            service=None,
            slices=dict(job.slices) or None,
            state=job.state,
            since=job.submitted,
            host=job.host or None,
            pid=None,
            user=user_name(),
            link=None,
            job=job_fields(job),
        )


@takes_place
def list_connections(
    *,
    everybody: Annotated[
        bool, typer.Option("--all", help="Include connections of other users in the cluster.")
    ] = False,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """List your connections and submitted jobs, after deleting what dead programs left behind."""
    settings = Settings.load()
    abandoned = [entry for entry in journal_entries(settings) if entry.abandoned]
    error = clean_up_entries(settings, abandoned)
    if error is not None:
        print_error(str(error))
    entries = journal_entries(settings)
    listed = [ListedConnection.of(entry) for entry in entries]
    reader = reader_of(place, settings)
    proxies = asyncio.run(_proxies(reader, "" if everybody else user_name()))
    known = {entry.session for entry in entries}
    jobs = {job.name: job for job in jobs_of(place)}
    listed += [
        ListedConnection.of_proxy(proxy, place.home)
        for proxy in proxies
        if proxy.session not in known and not (proxy.state == "ended" and proxy.name in jobs)
    ]
    listed = _with_jobs(listed, jobs)
    if as_json:
        print_json([dataclasses.asdict(item) for item in listed])
    else:
        _print_table(listed, jobs)


async def _proxies(reader: ServiceReader, user: str) -> Sequence[KnownProxy]:
    async with reader.proxies() as proxies:
        return await proxies.proxies(user)


def _with_jobs(
    listed: Sequence[ListedConnection], jobs: Mapping[str, JobStatus]
) -> list[ListedConnection]:
    """Adds jobs to their connections, and those without a connection, each in its order."""
    active = {name: job for name, job in jobs.items() if job.is_active}
    connected = [
        dataclasses.replace(item, job=job_fields(active.pop(item.name)))
        if item.job is None and item.name in active and item.home == active[item.name].home
        else item
        for item in listed
    ]
    rest = [ListedConnection.of_job(job) for job in jobs.values() if not job.is_active]
    return [*rest, *map(ListedConnection.of_job, active.values()), *connected]


def _print_table(listed: Sequence[ListedConnection], jobs: Mapping[str, JobStatus]) -> None:
    if not listed:
        print_line("no connections")
        return
    rows = []
    for item in listed:
        slices = ", ".join(f"{name}={count}" for name, count in (item.slices or {}).items())
        where = f"{item.home} {item.namespace}" if item.namespace else item.home
        state = f"job {job_text(jobs[item.name])}" if item.job else item.state
        if item.link and item.link["state"] == "lost":
            state += f", link lost {ago(item.link['lost_at'])}"
        who = f"{item.user or '?'}@{item.host or '?'}"
        rows.append((item.name, where, slices, state, ago(item.since), who, str(item.pid or "-")))
    print_table(("NAME", "HOME", "SLICES", "STATE", "SINCE", "USER", "PID"), rows)
