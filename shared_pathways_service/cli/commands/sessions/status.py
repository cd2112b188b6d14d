"""`sps status`: shows a service: processes, slices, holders and waiting tenants."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared_pathways_service.cli.display.decision_lines import reservation_line
from shared_pathways_service.cli.display.executor_display import (
    executor_place,
    shown_cpu,
    shown_memory,
)
from shared_pathways_service.cli.display.moments import ago
from shared_pathways_service.cli.display.output import (
    AsJson,
    make_console,
    make_table,
    print_error,
    print_json,
    print_line,
)
from shared_pathways_service.cli.display.serve_display import holder_of
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.place_readers import reader_of
from shared_pathways_service.cli.lookups.sessions import (
    links_of,
    metrics_of,
    place_of_tenant,
)
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.events import rfc3339
from shared_pathways_service.operations.service_readers.shown_counters import text_of
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.scheduling.book.decisions import span
from shared_pathways_service.session.link_view import LinkView

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["status"]


@takes_place
def status(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a connection. [default: the whole service]",
            show_default=False,
            autocompletion=connection_names,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
    openmetrics: Annotated[
        bool,
        typer.Option(
            "--openmetrics",
            help="Print the proxies' counters as OpenMetrics text.",
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Wait so long for the service and all its slices to be ready."
        ),
    ] = 0.0,
    place: Place,
) -> None:
    """Show the service: its processes, slices, holders and waiting tenants."""
    settings = Settings.load()
    place.request()
    place = place_of_tenant(settings, name, place)
    reader = reader_of(place, settings)
    if openmetrics and as_json:
        raise InvalidRequestError("--openmetrics", "with --json", "one of the two")
    links = links_of(settings, place, name)
    try:
        data = reader.status(name, wait_s=wait)
    except SharedPathwaysError:
        # The service cannot be read, but this machine may know why.
        for connection, link in links:
            print_error(_link_line(connection, link))
        raise
    data["links"] = [{"name": connection, **link.as_fields()} for connection, link in links]
    if openmetrics:
        print_line(text_of(reader.counters(name)).removesuffix("\n"))
        return
    data["agents"] = metrics_of(settings, place, name)
    if as_json:
        print_json(data)
    else:
        _print_tables(data, links)


def _print_tables(data: Mapping[str, Any], links: Sequence[tuple[str, LinkView]]) -> None:
    console = make_console()
    service = data["service"]
    console.print(f"{service['home']} service {service['version']} at {service['address']}")
    since = ago(service["since"])
    console.print(f"started {since}, {len(data['processes'])} processes\n")
    _print_unready(console, data["processes"])
    console.print(make_table(("SLICE", "TYPE", "STATE", "TENANT", "SINCE"), _slice_rows(data)))
    if data.get("executors"):
        columns = ("EXECUTOR", "TENANT", "STATE", "MEMORY", "CPU", "PID")
        console.print()
        console.print(make_table(columns, _executor_rows(data)))
    if data["tenants"]:
        head = ("TENANT", "USER", "PRIORITY", "STATE", "SLICES", "SINCE")
        console.print()
        console.print(make_table(head, _tenant_rows(data)))
    for entry in data["queue"]:
        wants = ", ".join(f"{name}={count}" for name, count in entry["wants"].items())
        console.print(
            f"\nqueue {entry['position']}: {entry['tenant']} wants {wants}, "
            f"waiting {span(entry['waiting_s'])} ({entry['reason'] or 'no reason'})"
        )
    for call in data.get("late_callbacks", ()):
        console.print(
            f"\n{call['connection']}: program {call['program']} has waited {call['seconds']:.0f} s "
            f"for its callback {call['function']} to return"
        )
    _print_reservations(console, data.get("reservations", ()))
    for connection, link in links:
        console.print(f"\n{_link_line(connection, link)}")
    for agent in data["agents"]:
        console.print(f"\nmetrics of {agent['name']}: {agent['metrics']}")


def _link_line(connection: str, link: LinkView) -> str:
    line = f"{connection}: {link.text(time.time())}"
    return line if link.resumed_at is None else f"{line}, {ago(rfc3339(link.resumed_at))}"


def _slice_rows(data: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for item in data["slices"]:
        holder = holder_of(item["state"], item["tenant"], item["virtual_index"])
        yield item["id"], item["instance_type"], item["state"], holder, ago(item["since"])


def _executor_rows(data: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for item in data["executors"]:
        yield (
            executor_place(item),
            item["tenant"] or "-",
            item["state"],
            shown_memory(item),
            shown_cpu(item),
            str(item["pid"] or "-"),
        )


def _tenant_rows(data: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for tenant in data["tenants"]:
        held = ", ".join(
            f"{s['index']}: {s['slice_id'] or s['state'] or s['instance_type']}"
            for s in tenant["slices"]
        )
        user = f"{tenant['user'] or '?'}@{tenant['host'] or '?'}"
        priority = "-" if tenant["priority"] is None else str(tenant["priority"])
        yield tenant["name"], user, priority, tenant["state"], held, ago(tenant["since"])


def _print_reservations(console: Console, data: Sequence[Mapping[str, Any]]) -> None:
    if data:
        console.print()
    for one in data:
        console.print(f"reserved {reservation_line(one)}")


def _print_unready(console: Console, processes: Sequence[Mapping[str, Any]]) -> None:
    """Prints the processes that are not ready, with the reason."""
    for process in processes:
        if process.get("state") not in (None, "ready"):
            console.print(f"{process['role']} {process['name']}: {process['state']}")
