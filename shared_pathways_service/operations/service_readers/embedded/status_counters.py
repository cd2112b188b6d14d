"""Reads the counters of the embedded service's proxies, for `sps status`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import grpc.aio

from shared_pathways_service.api.proxy_limits import LIMITS
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.embedded.discovery import find
from shared_pathways_service.metrics.families import Family, labelled, values_of
from shared_pathways_service.metrics.measurement_messages import families_of
from shared_pathways_service.protocol import proxy_status_pb2 as pb
from shared_pathways_service.protocol import proxy_status_pb2_grpc as pb_grpc
from shared_pathways_service.protocol import supervisor_pb2 as sup_pb
from shared_pathways_service.protocol.auth import bearer, read_token
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.settings import Settings

__all__ = ["Counters", "late_callbacks_of", "limits_of", "proxies_of", "read_counters", "text_of"]

#: Seconds for a proxy to answer: a busy or hung proxy must not delay the others.
_ANSWER_S = 5.0
_LATE = "sps_proxy_late_callback_seconds"


@dataclasses.dataclass(frozen=True)
class ProxyCounters:
    """The limits and counters of one proxy.

    Attributes:
      limits: The limits of its clients.
      families: Its counters; None: it did not answer.
    """

    limits: sup_pb.ProxyLimits
    families: Sequence[Family] | None


#: Counters by the connection's name.
Counters = Mapping[str, ProxyCounters]


async def read_counters(settings: Settings, name: str | None = None) -> Counters:
    """Reads the counters of all serving proxies concurrently; empty without a service.

    Args:
      settings: The directories of the service.
      name: One connection; None: all of them.

    Raises:
      ServiceNotReady: The service does not answer.
    """
    link = await find(settings)
    if link is None:
        return {}
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(link.close)
        try:
            found = await link.supervisor.GetProcesses(
                sup_pb.GetProcessesRequest(), metadata=link.metadata, timeout=_ANSWER_S
            )
        except grpc.aio.AioRpcError as error:
            raise error_of(error, service="the service", address=link.state.address) from error
    paths = RuntimePaths(settings.runtime_dir)
    serving = [
        proxy
        for proxy in found.proxies
        if proxy.state == sup_pb.Proxy.SERVING and name in {None, proxy.name}
    ]
    answers = await asyncio.gather(*(_read(paths, proxy) for proxy in serving))
    return {
        proxy.name: ProxyCounters(proxy.limits, families)
        for proxy, families in zip(serving, answers, strict=True)
    }


async def _read(paths: RuntimePaths, proxy: sup_pb.Proxy) -> list[Family] | None:
    try:
        # The service's files belong to this user, and so do its tenants' tokens.
        token = read_token(str(paths.proxy_token(proxy.uid)))
        async with grpc.aio.insecure_channel(proxy.address) as channel:
            response = await pb_grpc.ProxyStatusStub(channel).GetCounters(
                pb.GetCountersRequest(), metadata=bearer(token), timeout=_ANSWER_S
            )
    except (grpc.aio.AioRpcError, InvalidRequestError):
        # The proxy ended meanwhile, or hangs; the rest of the status is still useful.
        return None
    return families_of(response)


def proxies_of(counters: Counters) -> list[dict[str, Any]]:
    """Returns ``proxies`` for ``sps status --json``."""
    return [
        {
            "name": name,
            "limits": limits_of(proxy.limits),
            "counters": None if proxy.families is None else values_of(proxy.families),
        }
        for name, proxy in counters.items()
    ]


def late_callbacks_of(counters: Counters) -> list[dict[str, Any]]:
    """Returns ``late_callbacks`` for ``sps status --json``: unanswered calls to clients."""
    return [
        {"connection": name, **sample.labels, "seconds": sample.value}
        for name, proxy in counters.items()
        for family in proxy.families or ()
        if family.name == _LATE
        for sample in family.samples
    ]


def limits_of(limits: sup_pb.ProxyLimits) -> dict[str, int | None]:
    """Returns limits by name; None for no limit."""
    return {name: getattr(limits, name) or None for name in LIMITS}


def text_of(counters: Counters) -> str:
    """Returns counters as OpenMetrics text, with a label ``connection`` on each sample."""
    # Imported here, because other commands do not need prometheus_client.
    from shared_pathways_service.metrics.exposition import render  # noqa: PLC0415

    answered = {name: p.families for name, p in counters.items() if p.families is not None}
    return render(labelled(answered, "connection"))
