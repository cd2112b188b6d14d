"""Chooses the server of an executor's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared_pathways_service.servers.executor.core_service import core_server
from shared_pathways_service.servers.executor.executor_service import ExecutorService
from shared_pathways_service.servers.executor.public_service import public_server
from shared_pathways_service.servers.grpc_core import core_check
from shared_pathways_service.servers.serving.call_threads import CallThreads

__all__ = ["executor_server"]


class Server(Protocol):
    def add_insecure_port(self, address: str) -> int:
        """Binds an address; returns the port."""

    def start(self) -> None:
        """Starts serving."""


def executor_server(
    service: ExecutorService,
    options: Sequence[tuple[str, int]],
    pool: CallThreads,
    transport: str,
) -> Server:
    """Returns a server, not started yet.

    Args:
      service: The executor's service.
      options: Options of gRPC.
      pool: A thread for each call; more calls wait.
      transport: One of `TRANSPORTS`.
    """
    make = core_server if core_check.use_core(transport) else public_server
    return make(service, options, pool)
