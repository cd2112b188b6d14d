"""Kills of clients and agents on the testbed, and outside views of their results."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import grpc.aio

from harness.deadlines import wait_until
from harness.processes import run_async
from harness.testbed.clients import deployed, journal, nothing_left
from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.constants import RESOURCE_MANAGER_PORT
from shared_pathways_service.events import Event
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import DeployedService, Testbed, new_namespace

__all__ = ["agent_logs", "all_free", "events_told_by", "own_entry", "served", "tenants"]

_ANSWER_S = 10.0


@contextlib.contextmanager
def served(testbed: Testbed, slices: int = 2) -> Iterator[DeployedService]:
    """Runs a service in its own namespace until the block ends."""
    with new_namespace(testbed) as namespace:
        yield deployed(namespace, slices)


def tenants(service: DeployedService) -> list[str]:
    """Returns the tenants that hold or wait for slices, from the resource manager."""

    async def ask() -> list[str]:
        address = f"{service.head['status']['podIP']}:{RESOURCE_MANAGER_PORT}"
        async with grpc.aio.insecure_channel(address) as channel:
            stub: pb_grpc.ResourceManagerAsyncStub = pb_grpc.ResourceManagerStub(channel)
            told = await stub.GetStatus(pb.GetStatusRequest(), timeout=_ANSWER_S)
        return [tenant.name for tenant in told.tenants]

    return run_async(ask())


def all_free(service: DeployedService) -> None:
    """Waits until nothing is left: in the cluster, with the resource manager, on this machine."""
    nothing_left(service.namespace)
    wait_until("the end of all tenants", lambda: not tenants(service))
    wait_until("the end of all sockets", lambda: not _local_files())


def own_entry() -> Entry:
    """Waits for the journal's only entry, until its proxy is recorded, and returns it."""
    [entry] = wait_until("an entry of the journal", journal)
    assert isinstance(entry, Entry)
    return entry


def agent_logs() -> list[Path]:
    """Returns the logs of the agents there were."""
    return list((Settings.load().state_dir / "agents").glob("*.log"))


def events_told_by(log: Path | None = None) -> list[Event]:
    """Returns the events in an agent's log, by default in that of the only agent there was."""
    if log is None:
        [log] = agent_logs()
    found = re.findall(r'^.* INFO (\{"kind.*\})$', log.read_text(encoding="utf-8"), re.MULTILINE)
    return [Event.from_dict(json.loads(text)) for text in found]


def _local_files() -> list[Path]:
    """Returns sockets of tunnels, and tokens."""
    settings = Settings.load()
    tokens = (settings.state_dir / "journal").glob("*")
    sockets = settings.runtime_dir.rglob("*")
    return [path for path in (*tokens, *sockets) if not path.is_dir()]
