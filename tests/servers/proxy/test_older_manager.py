"""A proxy of now and a resource manager of the first release, which speaks version 1 alone."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory

from tests.processes import DEADLINE_S
from tests.protocol.kept import DIRECTORY, kept
from tests.servers.proxy.conftest import KIND, StartProxy

PACKAGE = "shared_pathways_service.v1"


class OldManager:
    """Answers as the first release did, in its own messages; `versions` are those it speaks."""

    def __init__(self, socket: Path, versions: tuple[int, int]) -> None:
        pool = descriptor_pool.DescriptorPool()
        for name in ("google/protobuf/struct.proto",):
            pool.AddSerializedFile(descriptor_pool.Default().FindFileByName(name).serialized_pb)
        for file in kept(DIRECTORY / "0.1.0.binpb").file:
            pool.Add(file)
        messages = message_factory.GetMessageClass
        self._message: Any = messages(pool.FindMessageTypeByName(f"{PACKAGE}.TenantMessage"))
        self._update: Any = messages(pool.FindMessageTypeByName(f"{PACKAGE}.TenantUpdate"))
        self._versions = versions
        self.hellos: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.byes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = futures.ThreadPoolExecutor(4)
        self._server = grpc.server(self._threads)
        handler = grpc.stream_stream_rpc_method_handler(
            self._session,
            request_deserializer=self._message.FromString,
            response_serializer=self._update.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    f"{PACKAGE}.ResourceManager", {"TenantSession": handler}
                ),
            )
        )
        self.address = f"unix:{socket}"
        self._server.add_insecure_port(self.address)
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait(DEADLINE_S)
        self._threads.shutdown()

    def _session(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        hello = next(requests).hello
        self.hellos.put(hello)
        low, high = self._versions
        if not hello.versions.min <= high <= hello.versions.max:
            theirs = f"{hello.versions.min} to {hello.versions.max}"
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"no common protocol version: the client speaks {theirs}, "
                f"the service {low} to {high}",
            )
        update = self._update()
        update.welcome.version, update.welcome.ttl_s = high, 15.0
        yield update
        for index in range(len(hello.virtual_slices)):
            update = self._update()
            update.placement.virtual_index, update.placement.state = index, 2
            update.placement.slice_id, update.placement.generation = f"slice-{index}", index + 1
            yield update
        update = self._update()
        update.running.placed = update.running.wanted = len(hello.virtual_slices)
        yield update
        for request in requests:
            self.byes.put(request)


@pytest.mark.parametrize("versions", [(1, 1), (9, 9)], ids=["old", "foreign"])
def test_a_proxy_goes_on_or_is_refused_with_both_versions_named(
    own_directories: Path, start_proxy: StartProxy, versions: tuple[int, int]
) -> None:
    manager = OldManager(own_directories / "rm", versions)
    try:
        proxy = start_proxy(
            f"--resource_manager_address={manager.address}",
            "--tenant_name=ada",
            "--max_lifetime_s=1000",
        )
        if versions == (1, 1):
            proxy.wait_for_line("The RM is ready; protocol 1")
            proxy.wait_for_line("All placements done")
            hello = manager.hellos.get(timeout=DEADLINE_S)
            assert set(hello.virtual_slices) == {KIND}
            assert proxy.stop() == 0
            assert manager.byes.get(timeout=DEADLINE_S).HasField("bye")
        else:
            proxy.wait_for_line("the client speaks 1 to 2, the service 9 to 9")
            assert proxy.wait() != 0
    finally:
        manager.close()
