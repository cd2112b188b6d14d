"""`sps serve`: the embedded service in the foreground."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shared_pathways_service import constants, descriptors
from shared_pathways_service.cli.errors import INTERRUPTED, TERMINATED
from shared_pathways_service.cli.policy_options import Policies, takes_policies
from shared_pathways_service.cli.serve_display import (
    Display,
    JsonLines,
    LiveTable,
    PlainLines,
    banner,
)
from shared_pathways_service.core.instances import parse_instance_texts
from shared_pathways_service.core.proxy_limits import LARGEST_LIMIT, LIMITS, ProxyLimits
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.embedded.options import DEFAULT_SLICES, SupervisorOptions
from shared_pathways_service.servers.embedded.supervisor import Supervisor
from shared_pathways_service.settings import Settings

__all__ = ["serve"]

_EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


def _limit(name: str) -> Any:
    """Returns the option of a proxy's limit; the variable is also the proxy's own."""
    limit = LIMITS[name]
    return typer.Option(min=limit.least, max=LARGEST_LIMIT, help=limit.help, envvar=limit.variable)


@takes_policies
def serve(
    *,
    slices: Annotated[
        list[str] | None,
        typer.Option(
            help=f"TYPE=COUNT, repeatable or comma-separated; by default {DEFAULT_SLICES}. "
            "Spares come on top: see --spares."
        ),
    ] = None,
    spares: Annotated[
        int,
        typer.Option(
            min=0,
            help="Slices of each type that start in addition to --slices and replace failed ones; "
            "no request gets them. 0: none.",
        ),
    ] = 1,
    max_slice_restarts: Annotated[
        int,
        typer.Option(min=0, help="Restarts of a slice's workers before the slice is given up."),
    ] = constants.MAX_SLICE_RESTARTS,
    standby_proxies: Annotated[
        int, typer.Option(min=0, help="Proxies kept warm for the next tenants.")
    ] = 1,
    platform: Annotated[
        str,
        typer.Option(
            envvar="SPS_PLATFORM",
            help="What proxies compute on: cpu, or cuda: each chip of a slice is a GPU.",
        ),
    ] = "cpu",
    device_memory_limit_bytes: Annotated[
        int, _limit("device_memory_limit_bytes")
    ] = ProxyLimits.device_memory_limit_bytes,
    host_memory_limit_bytes: Annotated[int | None, _limit("host_memory_limit_bytes")] = None,
    max_handles: Annotated[int, _limit("max_handles")] = ProxyLimits.max_handles,
    max_requests: Annotated[int, _limit("max_requests")] = ProxyLimits.max_requests,
    max_message_bytes: Annotated[int, _limit("max_message_bytes")] = ProxyLimits.max_message_bytes,
    max_sessions: Annotated[int, _limit("max_sessions")] = ProxyLimits.max_sessions,
    allow_ffi_libraries: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="SPS_ALLOW_FFI_LIBRARIES",
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="Directory of shared libraries that tenants may load into their own proxies, by "
            "proxy_options=['ffi_targets:NAME=LIBRARY:SYMBOL']; without it: none.",
        ),
    ] = None,
    beat_interval: Annotated[
        float, typer.Option(help="Seconds between two beats of a worker.")
    ] = constants.WORKER_BEAT_S,
    hung_after: Annotated[
        float, typer.Option(help="Seconds without a beat after which a worker counts as hung.")
    ] = constants.WORKER_HUNG_S,
    tenant_ttl: Annotated[
        float, typer.Option(help="Seconds that slices outlive the stream of their tenant's proxy.")
    ] = constants.TENANT_TTL_S,
    lost_program_grace: Annotated[
        float, typer.Option(help="Seconds that a program may go on running on a lost slice.")
    ] = constants.LOST_PROGRAM_GRACE_S,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every event as a line of JSON.")
    ] = False,
    policies: Policies,
) -> None:
    """Run the embedded service in the foreground, and show who holds what.

    What bounds a proxy bounds every tenant's: proxy_options= of connect() may ask for lower limits
    of the same names, never for higher ones.

    Ends with 130 on SIGINT and 143 on SIGTERM, when all its processes have ended; a second one
    kills them.
    """
    for field, value in (
        ("--beat-interval", beat_interval),
        ("--hung-after", hung_after),
        ("--tenant-ttl", tenant_ttl),
        ("--lost-program-grace", lost_program_grace),
    ):
        if not 0 < value < float("inf"):
            raise InvalidRequestError(field, value, "seconds, more than 0")
    if platform not in constants.PLATFORMS:
        known = ", ".join(constants.PLATFORMS)
        raise InvalidRequestError("--platform", platform, f"one of {known}")
    if hung_after <= beat_interval:
        raise InvalidRequestError("--hung-after", hung_after, "more than --beat-interval")
    counts = parse_instance_texts(slices or [DEFAULT_SLICES])
    options = SupervisorOptions(
        slices=tuple(counts.items()),
        spares=spares,
        max_slice_restarts=max_slice_restarts,
        standby_proxies=standby_proxies,
        platform=platform,
        device_memory_limit_bytes=device_memory_limit_bytes,
        host_memory_limit_bytes=host_memory_limit_bytes,
        max_handles=max_handles,
        max_requests=max_requests,
        max_message_bytes=max_message_bytes,
        max_sessions=max_sessions,
        ffi_library_dir=str(allow_ffi_libraries or ""),
        beat_interval_s=beat_interval,
        hung_after_s=hung_after,
        tenant_ttl_s=tenant_ttl,
        lost_program_grace_s=lost_program_grace,
        **dataclasses.asdict(policies),
    )
    descriptors.raise_limit()
    descriptors.check_limit()
    display = _display(as_json=as_json)
    display.introduce(banner(counts, spares))
    raise typer.Exit(asyncio.run(_serve(options, Settings.load(), display)))


def _display(*, as_json: bool) -> Display:
    if as_json:
        return JsonLines()
    return LiveTable() if sys.stdout.isatty() else PlainLines()


async def _serve(options: SupervisorOptions, settings: Settings, display: Display) -> int:
    """Runs the service to its end; returns the exit code."""
    code = 0
    supervisor = Supervisor(options, settings, display.show)
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        nonlocal code
        if code:
            supervisor.stop_at_once(f"a second signal, {number.name}")
        else:
            code = _EXIT_CODES[number]
            supervisor.stop(number.name)

    for number in _EXIT_CODES:
        loop.add_signal_handler(number, on_signal, number)
    async with display.following(supervisor.status):
        await supervisor.run()
    return code
