"""A proxy of now and a resource manager of the first release, which speaks version 1 alone."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.processes import DEADLINE_S
from tests.protocol.first_release import handlers, message, refuse
from tests.servers.proxy.conftest import KIND, StartProxy


class OldManager:
    """Answers as the first release did, in its own messages; `versions` are those it speaks."""

    def __init__(self, socket: Path, versions: tuple[int, int]) -> None:
        self._versions = versions
        self.hellos: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.byes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = futures.ThreadPoolExecutor(4)
        self._server = grpc.server(self._threads)
        calls = {"TenantSession": self._session}
        # (A proxy waits a second for the end of its call, and then cancels it.)
        found = handlers("ResourceManager", calls, self._note_bye)
        self._server.add_generic_rpc_handlers((found,))
        self.address = f"unix:{socket}"
        self._server.add_insecure_port(self.address)
        self._server.start()

    def close(self) -> None:
        assert self._server.stop(None).wait(DEADLINE_S)
        self._threads.shutdown()

    def _note_bye(self, received: Any) -> None:
        if received.HasField("bye"):
            self.byes.put(received.bye)

    def _session(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        hello = next(requests).hello
        self.hellos.put(hello)
        refuse(context, (hello.versions.min, hello.versions.max), self._versions)
        version = self._versions[1]
        yield message("TenantUpdate", welcome=message("TenantWelcome", version=version, ttl_s=15.0))
        wanted = len(hello.virtual_slices)
        for index in range(wanted):
            where = {"slice_id": f"slice-{index}", "generation": index + 1}
            placed = message("Placement", virtual_index=index, state="PLACED", **where)
            yield message("TenantUpdate", placement=placed)
        running = message("TenantRunning", placed=wanted, wanted=wanted)
        yield message("TenantUpdate", running=running)
        for _ in requests:
            pass


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
            assert manager.byes.get(timeout=DEADLINE_S).reason == "the proxy ends"
        else:
            proxy.wait_for_line("the client speaks 1 to 2, the service 9 to 9")
            assert proxy.wait() != 0
    finally:
        manager.close()
