"""Checks the embedded service for `sps doctor`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

import grpc.aio

from shared_pathways_service import constants
from shared_pathways_service.api.checks import Check, Outcome, judge
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotReady,
    SharedPathwaysError,
    VersionSkew,
)
from shared_pathways_service.homes.embedded.discovery import ServiceLink, find
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.runtime.settings import Settings

__all__ = ["embedded_checks"]


async def embedded_checks(
    settings: Settings, wanted: Sequence[str], within_s: float
) -> list[Check]:
    """Checks the embedded service of this user; that none runs is not a failure.

    Args:
      settings: The directories of the service.
      wanted: Instance types of a request, one per slice.
      within_s: Seconds for an answer.
    """
    try:
        link = await find(settings)
    except SharedPathwaysError as error:
        return [Check.failed("service", error)]
    if link is None:
        found = f"no service runs in {settings.runtime_dir}; connect() starts one"
        return [Check(name="service", outcome=Outcome.OK, found=found)]
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(link.close)
        state = link.state
        where = f"process {state.supervisor.pid} at {state.address}, since {state.since}"
        checks = [
            Check(name="service", outcome=Outcome.OK, found=where),
            judge("protocol", lambda: _common_protocol(link)),
            judge("instance types", lambda: _types(link, wanted)),
        ]
        try:
            status = await _read_status(link, within_s)
        except SharedPathwaysError as error:
            return [*checks, Check.failed("resource manager", error)]
        found = f"process {status.pid} answers, and is {status.state or 'ready'}"
        checks.append(Check(name="resource manager", outcome=Outcome.OK, found=found))
        return [*checks, _slices_check(status, wanted)]


def _common_protocol(link: ServiceLink) -> str:
    state = link.state
    theirs = f"{state.protocol_min} to {state.protocol_max}"
    ours = f"{constants.PROTOCOL_MIN} to {constants.PROTOCOL_MAX}"
    if state.protocol_max < constants.PROTOCOL_MIN or state.protocol_min > constants.PROTOCOL_MAX:
        raise VersionSkew(
            f"the service supports versions {theirs}, and this client {ours}",
            client=ours,
            service=theirs,
            hint=f"end the service with `kill {state.supervisor.pid}` when it is not in use; "
            "the next one has your version",
        )
    return f"the service supports versions {theirs}, this client {ours}"


def _types(link: ServiceLink, wanted: Sequence[str]) -> str:
    has = link.state.slices
    counts = ", ".join(f"{count} x {kind}" for kind, count in has.items())
    for kind, count in Counter(wanted).items():
        if count > has.get(kind, 0):
            raise InvalidRequestError("--slices", f"{kind}={count}", f"no more than {counts}")
    return counts


async def _read_status(link: ServiceLink, within_s: float) -> pb.GetStatusResponse:
    try:
        async with asyncio.timeout(within_s):
            return await link.resource_manager.GetStatus(
                pb.GetStatusRequest(), metadata=link.metadata, wait_for_ready=True
            )
    except TimeoutError as error:
        raise ServiceNotReady(
            f"the resource manager did not answer within {within_s:g} s",
            hint="`sps logs --component=rm` shows its last log lines",
        ) from error
    except grpc.aio.AioRpcError as error:
        address = link.state.address
        raise error_of(error, service="the embedded service", address=address) from error


def _slices_check(status: pb.GetStatusResponse, wanted: Sequence[str]) -> Check:
    ready = [item for item in status.slices if item.state == "ready"]
    free = Counter(item.instance_type for item in ready if not item.tenant)
    have = f"{len(ready)} of {len(status.slices)} slices are ready, {free.total()} of them free"
    unready = [f"{item.id} is {item.state}" for item in status.slices if item.state != "ready"]
    if not ready:
        error = ServiceNotReady(
            f"no slice is ready: {'; '.join(unready)}",
            wanted=len(status.slices),
            pods=unready,
            hint="`sps logs --component=worker` shows the last log lines of their workers",
        )
        return Check.failed("slices", error)
    if any(count > free[kind] for kind, count in Counter(wanted).items()) or not free:
        return Check(
            name="slices",
            outcome=Outcome.WARNING,
            found="; ".join([have, *unready]),
            fix="`sps status` shows the holders; queue_timeout= waits for slices",
        )
    outcome = Outcome.WARNING if unready else Outcome.OK
    return Check(name="slices", outcome=outcome, found="; ".join([have, *unready]))
