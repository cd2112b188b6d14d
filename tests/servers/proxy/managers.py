"""Resource managers in this process, and what a link to one needs beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent import futures
from typing import cast

import grpc

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch


@contextlib.contextmanager
def serving(manager: pb_grpc.ResourceManagerServicer, address: str) -> Iterator[str]:
    with futures.ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        pb_grpc.add_ResourceManagerServicer_to_server(manager, server)
        server.add_insecure_port(address)
        server.start()
        yield address
        assert server.stop(0).wait(DEADLINE_S)


class _Idle:
    """In an executor's place: nothing runs here."""

    def close(self) -> None:
        """Ends nothing."""


def idle_executor(_epoch: Epoch) -> Executor:
    return cast("Executor", _Idle())
