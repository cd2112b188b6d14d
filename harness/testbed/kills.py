"""Kills of clients and agents on the testbed, and outside views of their results."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
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

__all__ = [
    "EventReader",
    "agent_logs",
    "all_free",
    "events_told_by",
    "own_entry",
    "served",
    "tenants",
    "wait_for_event",
]

_ANSWER_S = 10.0
_EVENT = re.compile(rb'^.* INFO (\{"kind.*\})$', re.MULTILINE)


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


class EventReader:
    """Reads the events in an agent's log while it grows.

    Args:
      log: By default that of the only agent there was.
    """

    def __init__(self, log: Path | None = None) -> None:
        if log is None:
            [log] = agent_logs()
        self._log = log
        self._bytes_read = 0

    def read(self) -> list[Event]:
        """Returns the events that have been written since the last call."""
        with self._log.open("rb") as file:
            file.seek(self._bytes_read)
            new = file.read()
        # (The last line may not have been written to its end.)
        whole = new[: new.rfind(b"\n") + 1]
        self._bytes_read += len(whole)
        return [Event.from_dict(json.loads(text)) for text in _EVENT.findall(whole)]


def events_told_by(log: Path | None = None) -> list[Event]:
    """Returns the events in an agent's log, by default in that of the only agent there was."""
    return EventReader(log).read()


def wait_for_event(what: str, is_wanted: Callable[[Event], bool], log: Path | None = None) -> Event:
    """Waits until an agent's log has an event, and returns the first such one.

    Args:
      what: Named in the failure.
      is_wanted: Whether it is the event.
      log: By default that of the only agent there was.
    """
    events = EventReader(log)
    return wait_until(what, lambda: next(filter(is_wanted, events.read()), None))


def _local_files() -> list[Path]:
    """Returns sockets of tunnels, and tokens."""
    settings = Settings.load()
    tokens = (settings.state_dir / "journal").glob("*")
    sockets = settings.runtime_dir.rglob("*")
    return [path for path in (*tokens, *sockets) if not path.is_dir()]
