"""The processes of a service on the hosts of a network, and a client of its proxy."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc

from harness.deadlines import deadline, wait_until
from harness.network.namespaces import Network, network
from harness.network.servers import start_server
from harness.network.switch import Condition
from harness.processes import KIND
from harness.proxy.programs import DOUBLE, sharded_sum
from harness.proxy.raw import RawClient
from shared_pathways_service.constants import PROXY_PORT, RESOURCE_MANAGER_PORT, WORKER_PORT
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc

__all__ = [
    "COLLECTIVE_S",
    "DEVICES",
    "EACH_S",
    "HUNG_S",
    "PartitionError",
    "Placed",
    "Service",
    "running_service",
]

_WORKERS = ("w0", "w1", "w2")
#: The first device of each of the tenant's slices.
DEVICES = (0, 4)
#: Seconds for which hosts wait for each other in a program, and for a worker's heartbeat, which a
#: busy machine may delay.
COLLECTIVE_S, HUNG_S = 4, 15.0
#: Seconds for a round, at the most.
EACH_S = 120.0
_CALL_S = deadline(30.0)
_CUT = Condition(loss=1.0)


class PartitionError(AssertionError):
    """A partition had another result than it must."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A slice that the tenant holds, by the word of the resource manager."""

    slice_id: str
    generation: int


class Service:
    """The processes, and a client of the proxy.

    Args:
      links: With the hosts ``eye`` (this process), ``rm``, ``proxy`` and those of `_WORKERS`.
      scratch: A directory for logs and state.
    """

    def __init__(self, links: Network, scratch: Path) -> None:
        self._links = links
        self._scratch = scratch
        self._stack = contextlib.ExitStack()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._rm = f"{links.address('rm')}:{RESOURCE_MANAGER_PORT}"
        self._start(
            "rm",
            "resource_manager",
            f"--server_port={RESOURCE_MANAGER_PORT}",
            "--engine=distributed",
            f"--instance_type={KIND}",
            f"--instance_count={len(_WORKERS)}",
            f"--state_file={scratch / 'state'}",
            "--beat_interval_s=0.5",
            f"--hung_after_s={HUNG_S}",
            "--first_start",
        )
        channel = self._stack.enter_context(grpc.insecure_channel(self._rm))
        self._stub = pb_grpc.ResourceManagerStub(channel)
        self._status(wait_for_ready=True)
        for worker in _WORKERS:
            self._start_worker(worker)
        self._start(
            "proxy",
            "proxy",
            f"--server_port={PROXY_PORT}",
            f"--resource_manager_address={self._rm}",
            "--tenant_name=ada",
            "--engine=distributed",
            f"--collective_timeout_s={COLLECTIVE_S}",
            f"--virtual_slices={KIND},{KIND}",
            "--queue_timeout_s=inf",
        )
        self.wait_until_placed()
        self.client = RawClient(f"{links.address('proxy')}:{PROXY_PORT}")
        self._stack.callback(self.client.close)
        self.double = [self.client.compile(DOUBLE, [device]) for device in DEVICES]
        self.sum = self.client.compile(sharded_sum(len(DEVICES)), DEVICES)

    def close(self) -> None:
        """Ends all processes."""
        self._stack.close()
        for process in self._running.values():
            process.kill()
            process.wait()

    def cut(self, one: str, other: str, condition: Condition = _CUT) -> None:
        """Sets the condition of a link, both ways."""
        self._links.set(one, other, condition)
        self._links.set(other, one, condition)

    def worker_of(self, placed: Placed) -> str:
        """Returns the host of a slice of one host."""
        return placed.slice_id.replace("slice-", "w")

    def placed(self) -> dict[int, Placed]:
        """Returns the tenant's slices by their virtual index, as far as they are placed."""
        return {
            found.virtual_index: Placed(found.id, found.generation)
            for found in self._status().slices
            if found.tenant
        }

    def wait_until_placed(self) -> dict[int, Placed]:
        """Waits until the tenant holds all of its slices, and every worker serves."""

        def are_placed() -> bool:
            self.look_after()
            states = [found.state for found in self._status().slices]
            return len(self.placed()) == len(DEVICES) and states == ["ready"] * len(_WORKERS)

        wait_until("all slices are placed, and one is free", are_placed, EACH_S)
        return self.placed()

    def decisions(self, after: int) -> list[pb.EventMessage]:
        """Returns the decisions of the resource manager after one of this number."""
        pages = self._stub.GetHistory(pb.GetHistoryRequest(after=after), timeout=_CALL_S)
        return [event for page in pages for event in page.events]

    def look_after(self) -> None:
        """Starts workers again that have ended."""
        for host, process in list(self._running.items()):
            if process.poll() is not None:
                if host not in _WORKERS:
                    raise PartitionError(f"{host} has ended with {process.returncode}")
                self._start_worker(host)

    def _start_worker(self, host: str) -> None:
        self._start(
            host,
            "worker",
            f"--server_port={WORKER_PORT}",
            f"--resource_manager_address={self._rm}",
            f"--slice_id={_WORKERS.index(host)}",
            f"--instance_type={KIND}",
        )

    def _start(self, host: str, server: str, *flags: str) -> None:
        log = self._scratch / f"{host}-{self._started}.log"
        self._started += 1
        self._running[host] = start_server(self._links, host, server, *flags, log=log)

    def _status(self, *, wait_for_ready: bool = False) -> pb.GetStatusResponse:
        status: pb.GetStatusResponse = self._stub.GetStatus(
            pb.GetStatusRequest(), timeout=_CALL_S, wait_for_ready=wait_for_ready
        )
        return status


@contextlib.contextmanager
def running_service(seed: int, scratch: Path) -> Iterator[Service]:
    """Runs a service for the length of the block."""
    with network(("eye", "rm", "proxy", *_WORKERS), seed=seed) as links:
        service = Service(links, scratch)
        try:
            yield service
        finally:
            service.close()
