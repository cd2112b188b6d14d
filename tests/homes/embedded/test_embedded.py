"""The embedded home: finding, starting and joining the service, and one session over it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.deadlines import deadline, wait_until
from harness.processes import KIND, REPOSITORY, run_async
from harness.session_requests import session_request
from shared_pathways_service.errors import (
    AccessDenied,
    InvalidRequestError,
    ServiceNotReady,
    VersionSkew,
)
from shared_pathways_service.events import Event
from shared_pathways_service.homes.base import ProxyHandle, ignore_event
from shared_pathways_service.homes.embedded import slice_readiness
from shared_pathways_service.homes.embedded.discovery import ServiceLink, find, find_or_start
from shared_pathways_service.homes.embedded.home import EmbeddedHome
from shared_pathways_service.homes.embedded.slice_readiness import wait_until_usable
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.state_file import claim
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings
from tests.servers.supervisor.support import assert_clean, embedded, kill, runtime_paths

#: Joins, says which service it got, and leaves when it is told to.
CLIENT = """
import asyncio, sys
from shared_pathways_service.homes.embedded.discovery import find_or_start
from shared_pathways_service.runtime.settings import Settings
async def main():
    link = await find_or_start(Settings.load(), {"tpuv6e:2x2": 1}, who="a test")
    print(link.state.supervisor.pid, int(bool(link.started_pid)), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await link.close()
asyncio.run(main())
"""


def client_process() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


@pytest.mark.race
def test_two_concurrent_starts_get_one_service() -> None:
    with client_process() as first, client_process() as second:
        said = []
        for process in (first, second):
            assert process.stdout
            said.append(process.stdout.readline().split())
        assert said[0][0] == said[1][0]
        assert sorted(starter for _, starter in said) == ["0", "1"]
        for process in (first, second):
            process.communicate("\n", timeout=deadline(60.0))
            assert process.returncode == 0


@pytest.mark.race
def test_service_outlives_its_starter_and_is_clean_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "proxy")
    with client_process() as starter:
        assert starter.stdout
        pid = int(starter.stdout.readline().split()[0])
        starter.kill()
    assert identity_of(pid).is_alive()
    environ = Path(f"/proc/{pid}/environ").read_bytes() if sys.platform == "linux" else b""
    assert b"JAX_PLATFORMS" not in environ

    async def join() -> int:
        link = await find_or_start(Settings.load(), who="a test")
        await link.close()
        return link.state.supervisor.pid

    assert run_async(join()) == pid
    assert os.getsid(pid) != os.getsid(0)
    state = json.loads(runtime_paths().state.read_text())
    assert (state["slices"], state["spares"], state["detached"]) == ({KIND: 1}, 1, True)


@pytest.mark.race
def test_a_join_at_the_last_leave_gets_a_service() -> None:
    async def come_and_go() -> None:
        for _ in range(2):
            link = await find_or_start(Settings.load(), {KIND: 1}, who="a test")
            # It ends at once when the next line has been read; the next join must see to it.
            ending = asyncio.create_task(_end(link))
            other = await find_or_start(Settings.load(), {KIND: 1}, who="another")
            await ending
            # Either the old one, before its end was decided, or a new one that lives.
            if other.state.supervisor != link.state.supervisor:
                answer = await other.supervisor.GetProcesses(
                    pb.GetProcessesRequest(), metadata=other.metadata, timeout=deadline(30.0)
                )
                assert answer.processes[0].pid == other.state.supervisor.pid
            await other.close()
            await link.close()

    async def _end(link: ServiceLink) -> None:
        await link.supervisor.Shutdown(
            pb.ShutdownRequest(), metadata=link.metadata, timeout=deadline(30.0)
        )

    run_async(come_and_go())


@contextlib.asynccontextmanager
async def home() -> AsyncIterator[EmbeddedHome]:
    made = EmbeddedHome()
    try:
        yield made
    finally:
        await made.close()


async def next_of(events: AsyncIterator[Event], *kinds: str) -> list[Event]:
    """Waits for one of each kind, and passes over others; two streams bring them in any order."""
    found: dict[str, Event] = {}
    async with asyncio.timeout(deadline(60.0)):
        while len(found) < len(kinds):
            event = await anext(events)
            if event.kind in kinds:
                found[event.kind] = event
    return [found[kind] for kind in kinds]


def test_one_session_from_nothing_to_its_end() -> None:
    async def session() -> None:
        async with home() as made:
            request = session_request("isc-proxy-a")
            info = await made.preflight(request, ignore_event)
            assert info.started
            assert info.instance_types == (KIND,)
            assert info.address == f"unix:{runtime_paths().resource_manager_socket}"
            handle = await made.create_proxy(request, session=request.name, owner=identity_of())
            again = await made.create_proxy(request, session=request.name, owner=identity_of())
            assert (again.uid, again.token) == (handle.uid, handle.token)
            events = aiter(made.follow(handle))
            address = await made.open_tunnel(handle, None)
            assert Path(address.removeprefix("unix:")).is_socket()
            _, placed, running = await next_of(
                events, "proxy.serving", "slice.placed", "tenant.running"
            )
            assert placed.data["virtual_index"] == 0
            assert isinstance(placed.data["generation"], int)
            assert running.data == {"placed": 1, "wanted": 1}
            assert any("Proxy serving" in line for line in await made.logs(handle, 50))
            async with home() as other:
                second = session_request("isc-proxy-b")
                assert not (await other.preflight(second, ignore_event)).started
                refused_handle = await other.create_proxy(
                    second, session=second.name, owner=identity_of()
                )
                [refused] = await next_of(aiter(other.follow(refused_handle)), "tenant.refused")
                assert refused.data["kind"] == "slices_taken"
                assert "ada@laptop" in str(refused.data["holders"])
            assert not await made.delete_proxy(handle.name, "another", request.name)
            assert await made.delete_proxy(handle.name, handle.uid, request.name)
            rest = [event.kind async for event in events]
            assert rest == ["proxy.deleted"]
            assert not await made.delete_proxy(handle.name, handle.uid, request.name)

    run_async(session())


@pytest.mark.race
def test_deaths_are_reported() -> None:
    async def session(supervisor: int) -> None:
        async with home() as made, contextlib.AsyncExitStack() as stack:
            request = session_request("isc-proxy-a")
            await made.preflight(request, ignore_event)
            handle = await made.create_proxy(request, session=request.name, owner=identity_of())
            events = aiter(made.follow(handle))
            await next_of(events, "tenant.running")
            [pid] = await _pids(made, handle)
            kill(pid)
            [exited] = await next_of(events, "proxy.exited")
            assert exited.data["exit_code"] == -9
            assert exited.reason == "killed by SIGKILL"

            other = await stack.enter_async_context(home())
            second = session_request("isc-proxy-b")
            await other.preflight(second, ignore_event)
            events = aiter(
                other.follow(
                    await other.create_proxy(second, session=second.name, owner=identity_of())
                )
            )
            await next_of(events, "tenant.running")
            kill(supervisor)
            [lost] = await next_of(events, "home.lost")
            assert "embedded service" in (lost.reason or "")
            assert not await other.delete_proxy("isc-proxy-b", "", second.name)

    with embedded() as (server, _):
        run_async(session(server.pid))


async def _processes() -> pb.GetProcessesResponse:
    """What the running service answers."""
    link = await find(Settings.load())
    assert link is not None
    try:
        return await link.supervisor.GetProcesses(
            pb.GetProcessesRequest(), metadata=link.metadata, timeout=deadline(30.0)
        )
    finally:
        await link.close()


async def _pids(made: EmbeddedHome, handle: ProxyHandle) -> list[int]:
    answer = await _processes()
    return [process.pid for process in answer.processes if process.name == handle.name]


def test_a_missing_type_is_refused_with_the_types_of_the_service() -> None:
    async def ask() -> None:
        async with home() as made:
            await made.preflight(session_request("isc-proxy-a", "tpuv5e:2x4"), ignore_event)

    with embedded(), pytest.raises(InvalidRequestError, match=KIND) as caught:
        run_async(ask())
    assert caught.value.field == "expected_tpu_instances"


def test_another_release_of_jax_is_refused_before_a_proxy_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask() -> list[str]:
        async with home() as made:
            with monkeypatch.context() as patch:
                patch.setattr("importlib.metadata.version", lambda _: "1.0.0")
                with pytest.raises(VersionSkew, match=r"JAX 1\.0\.0 here and JAX 0") as caught:
                    await made.preflight(session_request("isc-proxy-a"), ignore_event)
            assert caught.value.client == "1.0.0"
        answer = await _processes()
        return [proxy.name for proxy in answer.proxies if proxy.name == "isc-proxy-a"]

    with embedded():
        assert run_async(ask()) == []


def test_an_untested_release_of_jax_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []

    async def ask() -> None:
        async with home() as made:
            with monkeypatch.context() as patch:
                patch.setattr("importlib.metadata.version", lambda _: "0.99.0")
                await made.preflight(session_request("isc-proxy-a"), told.append)

    with embedded():
        run_async(ask())
    (reason,) = [event.reason or "" for event in told if event.kind == "service.warning"]
    assert reason.startswith("JAX is 0.99.0 here and 0.")
    assert "a pair that was not tried" in reason


def test_missing_slices_of_a_service_are_named() -> None:
    async def ask() -> None:
        link = await find_or_start(Settings.load(), who="a test")
        try:
            await wait_until_usable(link, ["tpuv6e:2x2"], limit=Timeout(0.5))
        finally:
            await link.close()

    with embedded("--max_slice_restarts=0") as (_, client):
        [worker] = client.processes("worker")
        kill(worker.pid)
        wait_until("its loss", lambda: not client.holders())
        with pytest.raises(ServiceNotReady, match=r"slice-0 \(tpuv6e:2x2\) is lost") as caught:
            run_async(ask())
        assert (caught.value.ready, caught.value.wanted) == (0, 1)


def test_slices_that_came_up_while_this_process_stood_still_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    surveys = [SimpleNamespace(complete=False, missing=[KIND]), SimpleNamespace(complete=True)]

    async def survey(*_: object) -> SimpleNamespace:
        return surveys.pop(0) if len(surveys) > 1 else surveys[0]

    async def listening() -> None:
        # Longer than the limit, in the middle of the wait.
        asyncio.get_running_loop().call_later(0.01, time.sleep, 2.0)

    monkeypatch.setattr(slice_readiness, "_survey", survey)
    news: Any = SimpleNamespace(changed=asyncio.Event(), wait_until_listening=listening)
    link: Any = None
    run_async(slice_readiness._wait_for_changes(news, link, [KIND], Timeout(0.1)))


@pytest.mark.race
@pytest.mark.parametrize("wait", ["for the manager's events", "for slices"])
def test_a_service_that_is_killed_is_not_waited_for(
    wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(pid: int) -> None:
        joined = asyncio.Event()

        async def join(*arguments: Any, **more: Any) -> ServiceLink:
            link = await find_or_start(*arguments, **more)
            joined.set()
            return link

        monkeypatch.setattr("shared_pathways_service.homes.embedded.home.find_or_start", join)
        async with home() as made:
            request = session_request("isc-proxy-a", KIND)
            asking = asyncio.create_task(made.preflight(request, ignore_event))
            async with asyncio.timeout(deadline(60.0)):
                await joined.wait()
            kill(pid)
            async with asyncio.timeout(deadline(10.0)):
                await asking

    with embedded("--max_slice_restarts=0") as (server, client), contextlib.ExitStack() as undo:
        if wait == "for slices":
            [worker] = client.processes("worker")
            kill(worker.pid)
            wait_until("its loss", lambda: not client.holders())
        else:
            [manager] = client.processes("rm")
            undo.enter_context(contextlib.suppress(ProcessLookupError))
            undo.callback(os.kill, manager.pid, signal.SIGCONT)
            os.kill(manager.pid, signal.SIGSTOP)
        with pytest.raises(ServiceNotReady, match="has ended"):
            run_async(ask(server.pid))


def test_a_service_that_cannot_start_shows_its_log(
    monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ServiceNotReady, match="exit code 1"):
        run_async(find_or_start(Settings.load(), who="a test"))


def test_a_lock_held_for_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.01")
    paths = RuntimePaths(Settings.load().runtime_dir)
    paths.directory.mkdir(mode=0o700)
    with claim(paths), pytest.raises(ServiceNotReady, match=r"service\.lock"):
        run_async(find_or_start(Settings.load(), who="a test"))
    assert_clean(paths)


def test_a_runtime_directory_open_to_others_is_refused() -> None:
    directory = Settings.load().runtime_dir
    directory.mkdir(mode=0o700)
    directory.chmod(0o777)
    try:
        with pytest.raises(AccessDenied, match="other users"):
            run_async(find_or_start(Settings.load(), who="a test"))
        assert not list(directory.iterdir()), "nothing was started in it"
    finally:
        directory.chmod(0o700)


def test_without_a_service_find_and_delete_do_nothing() -> None:
    async def look() -> None:
        assert await find(Settings.load()) is None
        assert not await EmbeddedHome().delete_proxy("isc-proxy-a", "", "s")

    run_async(look())
    assert not Settings.load().runtime_dir.exists(), "looking makes nothing"
