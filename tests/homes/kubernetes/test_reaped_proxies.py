"""Proxies in a cluster are reaped by its own clock, those of other machines only by evidence."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import email.utils
import os
import platform
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from harness.clock_steps import SteppedClock
from harness.deadlines import deadline, wait_until
from harness.processes import ended_process
from harness.programs import program, sps_failing, sps_json
from harness.session_requests import job_inputs
from harness.testbed.clients import journal
from shared_pathways_service.agent.journal import SILENT_AGE_S, Entry, Journal, journal_directory
from shared_pathways_service.agent.request import user_name
from shared_pathways_service.events import rfc3339
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.runtime.settings import Settings
from tests.homes.kubernetes.clusters import SERVICE, Clusters, entry_of, started
from tests.kube.background import background

pytestmark = pytest.mark.local

HOUR_S = 3600.0
#: Seconds from a sign of life of a session to the deadline of its proxy.
AHEAD_S = 600
ENDED_PID = 2**22 + 1  # more than Linux gives
PLACE = ("--context=A", f"--pathways-service={SERVICE}")
CONNECTS = f"""
say("connecting")
with isc_pathways.connect(
    context="A", pathways_service="{SERVICE}", timeout={deadline(120.0)}
):
    say("connected")
"""


class ClusterOfProxies(Clusters):
    """An API server that has Jobs of proxies, and does not answer for its services.

    Attributes:
      jobs: By name.
      deleted: The names of those that were deleted.
      ahead_s: Seconds by which its clock is ahead of the machine's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []
        self.ahead_s = 0.0
        self._end = asyncio.Event()

    def create(self, name: str, age_s: float = 0.0, **fields: Any) -> None:
        """Creates the Job of a proxy, which began so many seconds ago."""
        usual: dict[str, Any] = {
            "name": name,
            "namespace": "default",
            "session": f"session-of-{name}",
            "service_address": SERVICE,
            "image": "nowhere/none:1",
            "user": user_name(),
            "host": platform.node(),
            "created_by_pid": ENDED_PID,
            "deadline_s": AHEAD_S,
        }
        job = proxy_job(job_inputs(**{**usual, **fields}))
        began = rfc3339(time.time() + self.ahead_s - age_s)
        job["metadata"] |= {"uid": f"uid-of-{name}", "creationTimestamp": began}
        job["status"] = {"startTime": began, "active": 1}
        self.jobs[name] = job

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        kind, _, name = request.path.partition("/namespaces/default/")[2].partition("/")
        if kind == "jobsets":
            await self._end.wait()
        date = email.utils.formatdate(time.time() + self.ahead_s, usegmt=True)
        body: dict[str, Any] = {"kind": "Status", "reason": "NotFound", "code": 404}
        if kind and not name:
            body = {"kind": "List", "items": list(self.jobs.values()) if kind == "jobs" else []}
        elif kind == "jobs" and name in self.jobs:
            body = self.jobs[name]
            if request.method == "DELETE":
                sent = await request.json()
                assert sent["preconditions"]["uid"] == body["metadata"]["uid"], sent
                del self.jobs[name]
                self.deleted.append(name)
        return web.json_response(body, status=body.get("code", 200), headers={"Date": date})

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0]
            self.urls["A"] = f"http://{host}:{port}"
            yield
        finally:
            self._end.set()
            await runner.cleanup()


@pytest.fixture
def cluster(own_directories: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterOfProxies]:
    own_directories.mkdir(exist_ok=True)
    with background() as servers:
        made = ClusterOfProxies()
        servers.enter(made.served())
        config = made.kubeconfig(own_directories / "config", "A")
        monkeypatch.setenv("KUBECONFIG", str(config))
        yield made


def outcomes(*words: str) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in sps_json("reap", *PLACE, *words)}


def test_a_clock_that_is_an_hour_ahead_reaps_no_live_proxy(
    cluster: ClusterOfProxies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppedClock(tmp_path / "clock")
    for name, value in clock.variables.items():
        monkeypatch.setenv(name, value)
    cluster.create("live")
    cluster.create("dead", age_s=HOUR_S)
    clock.step(HOUR_S)
    assert outcomes("--dry-run") == {"live": "kept", "dead": "would be deleted"}
    code, err = sps_failing("delete", "live", *PLACE)
    assert code == 2
    assert "its deadline was just extended" in err
    # One that is behind keeps nothing that has ended.
    clock.step(-HOUR_S)
    assert outcomes() == {"live": "kept", "dead": "deleted"}
    assert cluster.deleted == ["dead"]


def test_a_cluster_whose_clock_is_an_hour_behind_keeps_live_proxies(
    cluster: ClusterOfProxies,
) -> None:
    cluster.ahead_s = -HOUR_S
    cluster.create("live")
    cluster.create("dead", age_s=HOUR_S)
    assert outcomes() == {"live": "kept", "dead": "deleted"}
    assert cluster.deleted == ["dead"]


def entry_of_another_machine(name: str) -> Entry:
    """Writes the entry of a session whose program and agent are on another machine."""
    there = dataclasses.replace(
        ended_process(), machine="another/elsewhere", start="another-boot/1", namespace=""
    )
    start = started(context="A", proxy_job_name=name)
    entry = dataclasses.replace(
        entry_of(start),
        owner=there,
        agent=there,
        uid=f"uid-of-{name}",
        state="serving",
        user=user_name(),
        host="elsewhere",
        since=rfc3339(time.time() - 60.0),
        service=SERVICE,
        namespace="default",
    )
    Journal(journal_directory(Settings.load())).write(entry)
    return entry


def names() -> list[str]:
    return [entry.name for entry in journal()]


def test_a_session_of_another_machine_is_deleted_only_after_its_deadline(
    cluster: ClusterOfProxies,
) -> None:
    entry = entry_of_another_machine("theirs")
    cluster.create("theirs", session=entry.session, host="elsewhere", created_by_pid=4242)
    assert entry.is_elsewhere
    assert not entry.abandoned

    for words in ((), PLACE):
        [listed] = sps_json("list", *words)
        assert (listed["name"], listed["host"]) == ("theirs", "elsewhere")
    assert sps_json("reap") == []
    assert outcomes() == {"theirs": "kept"}

    # What a connection sweeps at its beginning comes in the order of age: theirs would be first.
    gone = ended_process()
    mine = dataclasses.replace(
        entry_of(started(context="A", proxy_job_name="mine")), owner=gone, agent=gone
    )
    cluster.create("mine", session=mine.session)
    mine = dataclasses.replace(mine, uid="uid-of-mine", since=rfc3339(time.time()))
    Journal(journal_directory(Settings.load())).write(mine)
    with program(CONNECTS) as connecting:
        connecting.expect("connecting")
        wait_until("the sweep", lambda: "mine" in cluster.deleted)
        wait_until("its entry to be removed", lambda: "mine" not in names())
    assert cluster.deleted == ["mine"]
    assert "theirs" in names()
    assert not [one for one in cluster.asked if one.startswith("DELETE") and "theirs" in one]

    cluster.ahead_s = HOUR_S
    assert outcomes("--dry-run") == {"theirs": "would be deleted"}
    assert outcomes() == {"theirs": "deleted"}
    assert cluster.deleted == ["mine", "theirs"]
    assert "theirs" not in names()


def test_a_session_of_another_machine_without_a_proxy_is_struck_off_once_it_is_silent(
    cluster: ClusterOfProxies,
) -> None:
    entry = entry_of_another_machine("theirs")
    [found] = sps_json("reap", *PLACE)
    assert (found["name"], found["outcome"]) == ("theirs", "kept")
    assert "elsewhere was active" in found["reason"]
    path = journal_directory(Settings.load()) / f"{entry.session}.json"
    long_ago = path.stat().st_mtime - SILENT_AGE_S - 1.0
    os.utime(path, (long_ago, long_ago))
    assert outcomes("--dry-run") == {"theirs": "would be deleted"}
    assert names() == ["theirs"]
    assert outcomes() == {"theirs": "deleted"}
    assert names() == []
    assert cluster.deleted == []
    assert not any(one.startswith("DELETE") for one in cluster.asked)
