"""`sps reap`: deletes connections whose owner has ended."""

from __future__ import annotations

import asyncio
import dataclasses
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from shared_pathways_service.agent.journal import (
    SILENT_AGE_S,
    Entry,
    Journal,
    journal_directory,
    journal_entries,
)
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import clean_up_entries, forget_entry
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy, why_kept
from shared_pathways_service.errors import CleanupError
from shared_pathways_service.operations.service_readers.base import ServiceReader
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings

__all__ = ["reap", "why_not_reaped"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reaped:
    """A connection whose owner has ended.

    Attributes:
      outcome: ``deleted``, ``gone`` (already deleted), ``kept`` (with the reason), or
        ``would be deleted``.
    """

    name: str
    home: str
    namespace: str | None
    outcome: str
    reason: str


@takes_place
def reap(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Delete what your dead programs left behind, and nothing of other users.

    On this machine the journal names these connections. If a cluster is named, its proxies that
    were created here for a process that has ended are deleted, too. Connections of other machines
    that share this journal count as dead only if they have shown no sign of life for long.
    """
    settings = Settings.load()
    reader = reader_of(place, settings)
    found, left = _reap_journal(settings, dry_run=dry_run)
    found += asyncio.run(_reap_proxies(settings, reader, place, dry_run=dry_run))
    if as_json:
        print_json([dataclasses.asdict(item) for item in found])
    else:
        for item in found:
            print_line(f"{item.outcome}: {item.name} ({item.reason})")
        if not found:
            print_line("nothing was left behind")
    if left is not None:
        raise left


def why_not_reaped(settings: Settings, proxy: KnownProxy, now: float) -> str:
    """Returns why a proxy in a cluster must not be deleted from this machine; empty if it may.

    Args:
      settings: The directory of the journal.
      proxy: The proxy.
      now: Seconds since 1970 by the API server's clock, which dates the proxy's deadline.
    """
    host = platform.node()
    is_alive: Callable[[int], bool] = _is_alive
    for entry in journal_entries(settings):
        if entry.session != proxy.session:
            continue
        if entry.is_elsewhere:
            # (It is known to be of this user. That nothing moves its deadline is the evidence.)
            host, is_alive = proxy.holder.host, _never
        elif not entry.abandoned:
            return f"process {entry.owner.pid} or its agent still runs"
    return why_kept(
        proxy,
        user=user_name(),
        host=host,
        is_alive=is_alive,
        now=now,
        ahead_s=settings.proxy_deadline_s,
    )


def _reap_journal(
    settings: Settings, *, dry_run: bool
) -> tuple[list[_Reaped], CleanupError | None]:
    entries = journal_entries(settings)
    abandoned = [entry for entry in entries if entry.abandoned]
    left = None if dry_run else clean_up_entries(settings, abandoned)
    if not dry_run and (directory := journal_directory(settings)).is_dir():
        Journal(directory).drop_stale_drafts()
    still = {entry.session for entry in journal_entries(settings)}
    found = []
    for entry in abandoned:
        outcome = "kept" if entry.session in still else "deleted"
        item = _Reaped(
            name=entry.name,
            home=entry.home.name,
            namespace=entry.namespace or None,
            outcome="would be deleted" if dry_run else outcome,
            reason=f"its owner, process {entry.owner.pid}, has ended",
        )
        found.append(item)
    elsewhere = [e for e in entries if e.is_elsewhere and e.home.name == "embedded"]
    return [*found, *_reap_elsewhere(settings, elsewhere, dry_run=dry_run)], left


def _reap_elsewhere(
    settings: Settings, entries: Sequence[Entry], *, dry_run: bool
) -> Iterator[_Reaped]:
    """Strikes off connections of machines that have been silent for long.

    Nothing of them is left: neither a proxy in a cluster, nor an embedded service of such a
    machine.
    """
    journal = Journal(journal_directory(settings))
    for entry in entries:
        silent_s = journal.silent_s(entry.session)
        where = entry.host or "another machine"
        outcome, reason = "kept", f"{where} was active {silent_s:.0f} s ago"
        if silent_s >= SILENT_AGE_S:
            outcome = "would be deleted" if dry_run else "deleted"
            reason = f"{where} has been silent for {silent_s / 60:.0f} minutes"
            if not dry_run:
                forget_entry(settings, entry)
        yield _Reaped(
            name=entry.name,
            home=entry.home.name,
            namespace=entry.namespace or None,
            outcome=outcome,
            reason=reason,
        )


async def _reap_proxies(
    settings: Settings, reader: ServiceReader, place: Place, *, dry_run: bool
) -> list[_Reaped]:
    known = {entry.session: entry for entry in journal_entries(settings)}
    found = []
    listed = set()
    async with reader.proxies() as proxies:
        for proxy in await proxies.proxies(user_name()):
            listed.add(proxy.session)
            entry = known.get(proxy.session)
            if not (proxy.holder.host == platform.node() if entry is None else entry.is_elsewhere):
                continue
            why = why_not_reaped(settings, proxy, proxies.server_time)
            outcome = "kept" if why else "would be deleted"
            if not why and not dry_run:
                outcome = "deleted" if await proxies.delete(proxy) else "gone"
                if entry is not None:
                    forget_entry(settings, entry)
            item = _Reaped(
                name=proxy.name,
                home=place.home,
                namespace=proxy.namespace,
                outcome=outcome,
                reason=why or f"its owner, process {proxy.pid}, has ended",
            )
            found.append(item)
    gone = [
        entry
        for session, entry in known.items()
        if session not in listed
        and entry.is_elsewhere
        and entry.home.name == place.home == "kubernetes"
        and place.has(entry)
    ]
    return [*found, *_reap_elsewhere(settings, gone, dry_run=dry_run)]


def _never(_pid: int) -> bool:
    return False


def _is_alive(pid: int) -> bool:
    try:
        return identity_of(pid).is_alive()
    except ProcessLookupError:
        return False
