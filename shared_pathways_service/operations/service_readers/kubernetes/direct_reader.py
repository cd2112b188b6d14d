"""Reads a service from inside of its cluster, by its resource manager alone.

It sends no request to the API server, so that its pod needs no rights.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.operations.service_readers.base import LogRequest, ShowLine
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.shown_counters import Counters
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.rmclient.channels import STREAM_CHANNEL
from shared_pathways_service.version import __version__

__all__ = ["DirectReader"]

#: Milliseconds between two attempts to connect at most; by default two minutes.
_CHANNEL: Final = (*STREAM_CHANNEL, ("grpc.max_reconnect_backoff_ms", 5_000))


class DirectReader:
    """A service of our images whose resource manager this machine can reach.

    Of connections it knows what the resource manager reports: not their Jobs, and no logs.

    Args:
      address: ``host:port`` of the resource manager.
    """

    has_counters = False

    def __init__(self, address: str) -> None:
        self._address = address

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        """Connects to the resource manager, with the first call."""
        async with grpc.aio.insecure_channel(self._address, options=_CHANNEL) as channel:
            stub = pb_grpc.ResourceManagerStub(channel)
            # (The page of a service has its image, unless an operator has chosen another.)
            yield Manager(stub=stub, metadata=(), address=self._address, version=__version__)

    def status(self) -> dict[str, Any]:
        """Raises ServiceNotFound: there is nothing but the resource manager."""
        raise ServiceNotFound(f"only the resource manager at {self._address} is read")

    def counters(self, _name: str | None) -> Counters:
        """Returns no counters."""
        return {}

    @contextlib.asynccontextmanager
    async def proxies(self) -> AsyncIterator[_NoProxies]:
        """Gives access to no proxies."""
        yield _NoProxies()

    def show_logs(self, wanted: LogRequest, _show: ShowLine) -> None:
        """Raises ServiceNotFound."""
        raise ServiceNotFound(f"the log of {wanted.name} is not read here")


class _NoProxies:
    """Proxies that are not known."""

    server_time = 0.0

    async def proxies(self, _user: str = "") -> list[KnownProxy]:
        """Returns none."""
        return []

    async def proxy(self, name: str) -> KnownProxy:
        """Raises ServiceNotFound."""
        raise ServiceNotFound(f"the Job of {name} is not read here")

    async def delete(self, _proxy: KnownProxy) -> bool:
        """Deletes nothing."""
        return False
