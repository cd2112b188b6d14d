"""A resource manager, workers and proxies as processes on the hosts of a network."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import grpc

from harness.deadlines import deadline
from harness.network.namespaces import Network
from harness.network.servers import start_server
from harness.processes import KIND
from shared_pathways_service.constants import PROXY_PORT, RESOURCE_MANAGER_PORT, WORKER_PORT
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from stress.partitions.history import Belief, History, Life, Recorded

__all__ = ["Fleet"]

_CALL_S = deadline(10.0)
_PLACED = re.compile(
    r"Transition slice (\d+) unplaced -> placed \(placement on (\S+), generation (\d+)\)"
)
_UNPLACED = re.compile(r"Transition slice (\d+) placed -> unplaced")


@dataclasses.dataclass(eq=False)
class _Running:
    host: str
    name: str
    process: subprocess.Popen[bytes]
    log: TextIO


class Fleet:
    """The processes; workers and proxies that end are started again, proxies as new tenants.

    Args:
      network: With the hosts ``eye`` (this process), ``rm``, and those below.
      workers: Host names, one slice each.
      proxies: Host names, one tenant each.
      history: Gets what happens.
      scratch: A directory for logs.
    """

    def __init__(
        self,
        network: Network,
        workers: Sequence[str],
        proxies: Sequence[str],
        history: History,
        scratch: Path,
    ) -> None:
        self._network = network
        self._history = history
        self._scratch = scratch
        self._stack = contextlib.ExitStack()
        self._started = 0
        self._last = 0  # decision
        self._workers: dict[str, _Running] = {}
        self._proxies: dict[str, _Running] = {}
        self._rm_address = f"{network.address('rm')}:{RESOURCE_MANAGER_PORT}"
        times = history.times
        self._rm = self._start(
            "rm",
            "rm",
            "resource_manager",
            f"--server_port={RESOURCE_MANAGER_PORT}",
            f"--instance_type={KIND}",
            f"--instance_count={len(workers)}",
            f"--state_file={scratch / 'state'}",
            f"--beat_interval_s={times.beat_s}",
            f"--hung_after_s={times.hung_s}",
            f"--tenant_ttl_s={times.ttl_s}",
            "--first_start",
        )
        channel = self._stack.enter_context(grpc.insecure_channel(self._rm_address))
        self._stub = pb_grpc.ResourceManagerStub(channel)
        self._status(wait_for_ready=True)
        for number, host in enumerate(workers):
            self._start_worker(host, f"slice-{number}")
        for host in proxies:
            self._start_proxy(host)

    def close(self) -> None:
        """Ends all processes."""
        for running in (*self._proxies.values(), *self._workers.values(), self._rm):
            running.process.kill()
            running.process.wait()
        self._stack.close()

    def look_after(self) -> None:
        """Notes which processes have ended, and starts others in their places."""
        if self._rm.process.poll() is not None:
            raise RuntimeError(f"the resource manager has ended; see {self._scratch}")
        for host, running in list(self._workers.items()):
            if running.process.poll() is not None:
                self._note_end(running)
                self._start_worker(host, running.name)
        for host, running in list(self._proxies.items()):
            if running.process.poll() is not None:
                self._note_end(running)
                self._start_proxy(host)

    def read(self) -> None:
        """Adds the new part of logs and of the resource manager's decisions to the history."""
        for running in self._proxies.values():
            self._read_log(running)
        request = pb.GetHistoryRequest(after=self._last)
        for page in self._stub.GetHistory(request, timeout=_CALL_S):
            for message in page.events:
                self._last = message.sequence
                self._history.decisions.append(_recorded(message))

    def differences(self) -> list[str]:
        """Returns what does not agree now, in words."""
        self.look_after()
        status = self._status()
        self.read()
        differ = [f"{s.id} is {s.state}" for s in status.slices if s.state != "ready"]
        tenants = {tenant.name: tenant for tenant in status.tenants}
        alive = {running.name for running in self._proxies.values()}
        if odd := tenants.keys() ^ alive:
            differ.append(f"{', '.join(sorted(odd))}: known or alive, and not both")
        differ += [f"{one.name} is not connected" for one in status.tenants if not one.connected]
        held = {(s.tenant, s.id, s.generation) for s in status.slices if s.tenant}
        if len(held) < min(len(status.slices), len(alive)):
            differ.append(f"{len(held)} slices are held")
        if held != (believed := self._believed(alive)):
            differ.append(f"{sorted(held ^ believed)}: held or believed, and not both")
        return differ

    # ---- processes

    def _start_worker(self, host: str, slice_id: str) -> None:
        self._workers[host] = self._start(
            host,
            slice_id,
            "worker",
            f"--server_port={WORKER_PORT}",
            f"--resource_manager_address={self._rm_address}",
            f"--slice_id={slice_id}",
            f"--instance_type={KIND}",
        )

    def _start_proxy(self, host: str) -> None:
        name = f"{host}-{self._started}"
        self._proxies[host] = self._start(
            host,
            name,
            "proxy",
            f"--server_port={PROXY_PORT}",
            f"--resource_manager_address={self._rm_address}",
            f"--tenant_name={name}",
            f"--virtual_slices={KIND}",
            "--queue_timeout_s=inf",
        )

    def _start(self, host: str, name: str, module: str, *flags: str) -> _Running:
        path = self._scratch / f"{name}-{self._started}.log"
        self._started += 1
        process = start_server(self._network, host, module, *flags, log=path)
        reader = self._stack.enter_context(path.open(encoding="utf-8", errors="replace"))
        life = Life(at=time.time(), host=host, name=name, what="started")
        self._history.lives.append(life)
        return _Running(host, name, process, reader)

    def _note_end(self, running: _Running) -> None:
        if running in self._proxies.values():
            self._read_log(running)
        running.log.close()
        life = Life(at=time.time(), host=running.host, name=running.name, what="ended")
        self._history.lives.append(life)

    # ---- what they say

    def _read_log(self, running: _Running) -> None:
        while (line := running.log.readline()).endswith("\n"):
            with contextlib.suppress(ValueError):  # XLA's own lines
                if (belief := _belief(running.name, json.loads(line))) is not None:
                    self._history.beliefs.append(belief)
        running.log.seek(running.log.tell() - len(line.encode()))

    def _believed(self, alive: set[str]) -> set[tuple[str, str, int]]:
        last = {(b.tenant, b.index): b for b in self._history.beliefs if b.tenant in alive}
        return {(b.tenant, b.slice_id, b.generation) for b in last.values() if b.generation}

    def _status(self, *, wait_for_ready: bool = False) -> pb.GetStatusResponse:
        status: pb.GetStatusResponse = self._stub.GetStatus(
            pb.GetStatusRequest(), timeout=6 * _CALL_S, wait_for_ready=wait_for_ready
        )
        return status


def _belief(tenant: str, line: dict[str, Any]) -> Belief | None:
    at = datetime.fromisoformat(line["time"]).timestamp()
    if found := _PLACED.search(line["message"]):
        index, slice_id, generation = found.groups()
        return Belief(
            at=at,
            tenant=tenant,
            index=int(index),
            slice_id=slice_id,
            generation=int(generation),
        )
    if found := _UNPLACED.search(line["message"]):
        return Belief(at=at, tenant=tenant, index=int(found[1]))
    return None


def _recorded(message: pb.EventMessage) -> Recorded:
    data: dict[str, Any] = dict(message.data)
    return Recorded(
        at=datetime.fromisoformat(message.time).timestamp(),
        kind=message.kind,
        tenant=message.tenant,
        slice_id=message.slice,
        index=int(data.get("virtual_index", -1)),
        generation=int(data.get("generation", 0)),
        reason=message.reason,
    )
