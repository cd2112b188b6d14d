"""Reads the counters of the embedded service's proxies, for `sps status`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import grpc.aio

from shared_pathways_service.api.proxy_limits import LIMITS
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.embedded.discovery import find
from shared_pathways_service.metrics.families import Family
from shared_pathways_service.metrics.measurement_messages import families_of
from shared_pathways_service.operations.service_readers.shown_counters import (
    Counters,
    ProxyCounters,
)
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import proxy_status_pb2 as pb
from shared_pathways_service.protocol import proxy_status_pb2_grpc as pb_grpc
from shared_pathways_service.protocol import supervisor_pb2 as sup_pb
from shared_pathways_service.protocol.auth import bearer, read_token
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.rmclient.channels import LOCAL_CHANNEL
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.settings import Settings

__all__ = ["counters_of", "limits_of", "read_counters"]


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
                sup_pb.GetProcessesRequest(),
                metadata=link.metadata,
                timeout=timeouts.COUNTERS_CALL.s,
            )
        except grpc.aio.AioRpcError as error:
            raise error_of(error, service="the service", address=link.state.address) from error
    return await counters_of(found.proxies, settings, name)


async def counters_of(
    proxies: Iterable[sup_pb.Proxy], settings: Settings, name: str | None
) -> Counters:
    """As `read_counters`, of proxies that the supervisor has named."""
    paths = RuntimePaths(settings.runtime_dir)
    serving = [
        proxy
        for proxy in proxies
        if proxy.state == sup_pb.Proxy.SERVING and name in {None, proxy.name}
    ]
    answers = await asyncio.gather(*(_read(paths, proxy) for proxy in serving))
    return {
        proxy.name: ProxyCounters(limits_of(proxy.limits), families)
        for proxy, families in zip(serving, answers, strict=True)
    }


async def _read(paths: RuntimePaths, proxy: sup_pb.Proxy) -> list[Family] | None:
    try:
        # The service's files belong to this user, and so do its tenants' tokens.
        token = read_token(str(paths.proxy_token(proxy.uid)))
        async with grpc.aio.insecure_channel(proxy.address, options=LOCAL_CHANNEL) as channel:
            response = await pb_grpc.ProxyStatusStub(channel).GetCounters(
                pb.GetCountersRequest(), metadata=bearer(token), timeout=timeouts.COUNTERS_CALL.s
            )
    except (grpc.aio.AioRpcError, InvalidRequestError):
        # The proxy ended meanwhile, or hangs; the rest of the status is still useful.
        return None
    return families_of(response)


def limits_of(limits: sup_pb.ProxyLimits) -> dict[str, int | None]:
    """Returns limits by name; None for no limit."""
    return {name: getattr(limits, name) or None for name in LIMITS}
