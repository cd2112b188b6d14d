"""`sps chaos`: disturbs the running embedded service at random times."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Iterator
from typing import Annotated, Any, Final, TypeVar, cast

import grpc
import grpc.aio
import typer

from shared_pathways_service.cli.display.output import AsJson, print_aside, print_json, print_line
from shared_pathways_service.cli.errors import DONE, FAILED, INTERRUPTED, TERMINATED
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError, ServiceNotReady
from shared_pathways_service.events import rfc3339
from shared_pathways_service.homes.embedded.discovery import ServiceLink
from shared_pathways_service.operations.disruptions import (
    Chaos,
    ChaosOptions,
    Kind,
    SliceView,
    Strike,
    moments,
)
from shared_pathways_service.operations.service_readers.embedded.embedded_link import embedded_link
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb
from shared_pathways_service.protocol import supervisor_pb2 as sup_pb
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import kill_children
from shared_pathways_service.runtime.settings import Settings

__all__ = ["chaos", "parse_duration"]

_Answer = TypeVar("_Answer")

_EXIT_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
#: Status codes of calls to a service that is ending.
_ENDING: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
_DURATION: Final = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s|m|h|)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
#: Entries to print of a plan without an end.
_SHOWN: Final = 20
_DOWN: Final = ("starting", "lost")
_RPC_KINDS: Final = {
    "kill": sup_pb.DisturbSliceRequest.KILL,
    "hang": sup_pb.DisturbSliceRequest.HANG,
}
_WORDS: Final = {
    "kill": "killed the workers of",
    "hang": "stopped the workers of",
    "proxy": "killed the proxy of",
}


def parse_duration(field: str, text: str) -> float:
    """Returns the seconds of e.g. ``30s``, ``1.5m``, ``2h``, ``500ms``; a number alone is seconds.

    Raises:
      InvalidRequestError: The text has another form.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidRequestError(field, text, "a time such as 30s, 5m, 1h or 500ms")
    return float(found["number"]) * _UNITS[found["unit"]]


@takes_place
def chaos(
    *,
    mtbf: Annotated[
        str, typer.Option(metavar="TIME", help="Set the mean time between failures.")
    ] = "30s",
    down_for: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Keep a slice down, or hanging, for so long; at most 1h."
        ),
    ] = "5s",
    kinds: Annotated[
        str, typer.Option(metavar="KIND,…", help="Cause these failures: kill, hang, proxy.")
    ] = "kill",
    slices_at_once: Annotated[
        int, typer.Option(help="Keep at most so many slices down at the same time.")
    ] = 1,
    seed: Annotated[
        int | None,
        typer.Option(help="Repeat the failures of a run with this seed. [default: random]"),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="End after so long. [default: on Ctrl-C]")
    ] = None,
    only_held: Annotated[
        bool, typer.Option("--only-held/--any", help="Disturb only slices that have a holder.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the times and failures of the seed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Disturb the embedded service at random times, to test the programs that use it.

    kill: the workers of a slice are killed, and restarted after --down-for. hang: they are stopped
    for so long; a slice counts as lost if its workers send no heartbeat for longer than the
    service's --hung-after (30 s), and a shorter hang has no effect. proxy: a tenant's proxy is
    killed, which ends every program that does not reconnect.

    A failure is skipped while --slices-at-once slices are down. At the end all slices are restored.
    The exit code is 0 after --duration, 130 on Ctrl-C, 143 on SIGTERM.
    """
    place.request()
    if place.home != "embedded":
        raise InvalidRequestError(
            "--context",
            place.context or place.cluster or place.pathways_service,
            "none",
            message="`sps chaos` disturbs the embedded service of this machine, not a cluster",
            hint="examples/disrupt.sh removes a worker of a PathwaysJob",
        )
    options = ChaosOptions(
        mtbf_s=parse_duration("--mtbf", mtbf),
        down_for_s=parse_duration("--down-for", down_for),
        kinds=cast("tuple[Kind, ...]", tuple(k.strip() for k in kinds.split(","))),
        slices_at_once=slices_at_once,
        only_held=only_held,
        seed=secrets.randbelow(2**31) if seed is None else seed,
    )
    duration_s = None if duration is None else parse_duration("--duration", duration)
    show = _Show(as_json=as_json, down_for_s=options.down_for_s)
    if dry_run:
        show.plan(options, duration_s)
        return
    raise typer.Exit(asyncio.run(_run(Settings.load(), options, duration_s, show, yes=yes)))


class _Show:
    """Prints failures as they are caused."""

    def __init__(self, *, as_json: bool, down_for_s: float) -> None:
        self._as_json = as_json
        self._down_for_s = down_for_s

    def plan(self, options: ChaosOptions, duration_s: float | None) -> None:
        """Prints the times and failures of a seed."""
        if duration_s is None:
            found = list(itertools.islice(moments(options), _SHOWN))
        else:
            found = list(itertools.takewhile(lambda m: m.at_s <= duration_s, moments(options)))
        if self._as_json:
            plan = [dataclasses.asdict(moment) for moment in found]
            print_json({"seed": options.seed, "moments": plan})
            return
        print_line(f"seed {options.seed}")
        for moment in found:
            print_line(f"+{moment.at_s:.1f} s  {moment.kind}  pick {moment.pick:.3f}")

    def begin(self, options: ChaosOptions) -> None:
        """Prints the options of the run."""
        if not self._as_json:
            print_line(
                f"disturbing the embedded service every {options.mtbf_s:g} s on average, "
                f"seed {options.seed}; Ctrl-C ends it"
            )

    def strike(self, strike: Strike, done: int) -> None:
        """Prints a failure; `done`: the number of affected processes."""
        now = rfc3339(time.time())
        if self._as_json:
            data = dataclasses.asdict(strike) | {"time": now, "processes": done}
            if strike.slice_id is not None:
                data["down_for_s"] = self._down_for_s
            print_json(data)
            return
        words = [now, f"+{strike.at_s:.1f} s ", _WORDS[strike.kind]]
        if strike.slice_id is None:
            words += [strike.tenant or ""]
        else:
            holder = f"slice {strike.virtual_index} of {strike.tenant}"
            words += [strike.slice_id, f"for {self._down_for_s:g} s"]
            words += [f"({holder if strike.tenant else 'no holder'})"]
        words += [] if done else ["- but it had already ended"]
        print_line(" ".join(words))

    def end(self, strikes: int, passed_over: int, seed: int) -> None:
        """Prints the totals."""
        if self._as_json:
            print_json({"seed": seed, "strikes": strikes, "passed_over": passed_over})
        else:
            print_line(f"{strikes} disturbances, {passed_over} skipped")


async def _run(
    settings: Settings,
    options: ChaosOptions,
    duration_s: float | None,
    show: _Show,
    *,
    yes: bool,
) -> int:
    """Disturbs the service until the run ends; returns the exit code."""
    async with embedded_link(settings) as link:
        service = _Service(link, RuntimePaths(settings.runtime_dir))
        slices = await service.slices()
        if sys.stdin.isatty() and not yes:
            _confirm(slices)
        with _stop_signals() as stop:
            show.begin(options)
            return await _disturb(service, options, duration_s, show, stop)


async def _disturb(
    service: _Service,
    options: ChaosOptions,
    duration_s: float | None,
    show: _Show,
    stop: asyncio.Future[int],
) -> int:
    loop = asyncio.get_running_loop()
    began = loop.time()
    end_s = float("inf") if duration_s is None else duration_s
    plan = Chaos(options)
    strikes = 0
    try:
        while True:
            left = began + min(plan.next.at_s, end_s) - loop.time()
            await asyncio.wait([stop], timeout=max(0.0, left))
            if stop.done():
                return stop.result()
            if plan.next.at_s > end_s:
                return DONE
            strike = plan.strike(loop.time() - began, await service.slices())
            if strike is not None:
                show.strike(strike, await service.do(strike, options.down_for_s))
                strikes += 1
    finally:
        await service.restore(plan.held(loop.time() - began))
        show.end(strikes, plan.passed_over, options.seed)


class _Service:
    """The service to disturb."""

    def __init__(self, link: ServiceLink, paths: RuntimePaths) -> None:
        self._link = link
        self._paths = paths
        self._call: dict[str, Any] = {"metadata": link.metadata, "timeout": timeouts.MANAGER_CALL.s}

    async def slices(self) -> list[SliceView]:
        """Returns all slices from the resource manager's status."""
        status = await self._answer(
            self._link.resource_manager.GetStatus(
                rm_pb.GetStatusRequest(), wait_for_ready=True, **self._call
            )
        )
        return [
            SliceView(
                id=item.id,
                is_up=item.state not in _DOWN,
                tenant=item.tenant or None,
                virtual_index=item.virtual_index if item.HasField("virtual_index") else None,
            )
            for item in status.slices
        ]

    async def do(self, strike: Strike, down_for_s: float) -> int:
        """Causes a failure; returns the number of affected processes."""
        if strike.slice_id is None:
            answer = await self._answer(
                self._link.supervisor.GetProcesses(sup_pb.GetProcessesRequest(), **self._call)
            )
            wanted = ("proxy", strike.tenant)
            pids = {p.pid for p in answer.processes if (p.role, p.name) == wanted}
            return kill_children(self._paths, pids)
        request = sup_pb.DisturbSliceRequest(
            slice=strike.slice_id, kind=_RPC_KINDS[strike.kind], hold_s=down_for_s
        )
        disturbed = self._link.supervisor.DisturbSlice(request, **self._call)
        return (await self._answer(disturbed)).workers

    async def restore(self, slices: tuple[str, ...]) -> None:
        """Restores slices, if the service still runs."""
        for slice_id in slices:
            request = sup_pb.DisturbSliceRequest(
                slice=slice_id, kind=sup_pb.DisturbSliceRequest.LET_GO
            )
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._link.supervisor.DisturbSlice(request, **self._call)

    async def _answer(self, call: Awaitable[_Answer]) -> _Answer:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            address = self._link.state.address
            if error.code() in _ENDING:
                raise ServiceNotReady(f"the embedded service at {address} has ended") from error
            raise error_of(error, service="the embedded service", address=address) from error


@contextlib.contextmanager
def _stop_signals() -> Iterator[asyncio.Future[int]]:
    """Yields a future that gets the exit code when a signal ends the run."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if not stop.done():
            stop.set_result(_EXIT_CODES[number])

    for number in _EXIT_CODES:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in _EXIT_CODES:
            loop.remove_signal_handler(number)


def _confirm(slices: list[SliceView]) -> None:
    tenants = sorted({view.tenant for view in slices if view.tenant is not None})
    effect = f"{', '.join(tenants)} would lose work" if tenants else "it is not in use now"
    try:
        sure = typer.confirm(f"This disturbs the embedded service: {effect}. Continue?", err=True)
    except typer.Abort:  # Ctrl-C, or a closed terminal
        raise typer.Exit(INTERRUPTED) from None
    if not sure:
        print_aside("nothing was disturbed")
        raise typer.Exit(FAILED)
