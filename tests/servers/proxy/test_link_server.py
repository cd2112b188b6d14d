"""A proxy with the far end of a link: its start, its end, its restart, its counters."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness.processes import DEADLINE_S, ServerProcess
from harness.proxy.raw import RawClient, split
from harness.testbed.ways import loopback_listener
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.metrics.families import values_of
from shared_pathways_service.metrics.measurement_messages import families_of
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.tunnel.link.near_end import LinkState
from tests.servers.proxy.conftest import KIND, StartProxy, wait_until
from tests.servers.proxy.processes import EIGHT, GLOG, address_of
from tests.servers.proxy.session.counting import ask
from tests.tunnel.link.near_ends import NearRig, a_near_end, listen
from tests.tunnel.link.rigs import run

TOKEN = "a-token"
NS = "sps_proxy_link"


@pytest.fixture
def port() -> Iterator[int]:
    """A free port, which the system assigns to no other socket during the test."""
    # (As this one does not listen, a server can listen on the port all the same.)
    with loopback_listener(0) as reserving:
        yield int(reserving.getsockname()[1])


def linked(start_proxy: StartProxy, directory: Path, port: int, *flags: str) -> ServerProcess:
    """Starts a proxy with a far end on a port."""
    token_file = directory / "token"
    token_file.touch(0o600)
    token_file.write_text(TOKEN)
    return start_proxy(f"--token_file={token_file}", f"--link_port={port}", *flags)


def far_process(proxy: ServerProcess) -> psutil.Process:
    """Returns the far end's process."""
    (found,) = (
        child
        for child in psutil.Process(proxy.pid).children()
        if "shared_pathways_service.tunnel.link" in child.cmdline()
    )
    return found


def counters(proxy: ServerProcess) -> dict[str, Any]:
    return values_of(families_of(ask(address_of(proxy), TOKEN)))


@contextlib.asynccontextmanager
async def a_client(rig: NearRig, directory: Path) -> AsyncIterator[RawClient]:
    """Opens a session through the link."""
    loop = asyncio.get_running_loop()
    path = directory / "near"
    listener = listen(loop, path, rig.near.accept)
    token = {"sps_token": TOKEN.encode()}
    try:
        client = await asyncio.to_thread(
            lambda: RawClient(f"unix:{path}", initialization_data=token)
        )
        try:
            yield client
        finally:
            await asyncio.to_thread(client.close)
    finally:
        loop.remove_reader(listener.fileno())
        listener.close()
        path.unlink()


def compute(client: RawClient) -> None:
    array = client.put(EIGHT, split(range(8)))
    np.testing.assert_array_equal(client.fetch(array), EIGHT)


def with_a_link(port: int, use: Callable[[NearRig], Awaitable[None]]) -> None:
    async def test() -> None:
        async with a_near_end(port, token=TOKEN.encode()) as rig:
            await rig.state(LinkState.UP)
            await use(rig)

    run(test)


# ---- start


def test_a_link_without_a_token_is_refused() -> None:
    flags = [f"--virtual_slices={KIND}", "--link_port=29002"]
    with pytest.raises(InvalidRequestError) as raised:
        parse_flags(ProxyServerOptions, flags, {})
    assert raised.value.field == "--link_port"
    assert "--token_file" in str(raised.value)


def test_a_port_that_is_taken_ends_the_proxy(
    start_proxy: StartProxy, own_directories: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        proxy = linked(start_proxy, own_directories, port)
        assert proxy.ready is None
        assert proxy.wait() == 1
    log = "\n".join(proxy.lines)
    assert f"cannot listen on port {port}: " in log
    assert f"the far end of the link cannot listen on port {port}" in log


@pytest.mark.parametrize("flags", [(), ("--server_port=0", "--server_socket=")])
def test_a_client_uses_a_proxy_through_a_link_to_its_end(
    start_proxy: StartProxy, own_directories: Path, port: int, flags: tuple[str, ...]
) -> None:
    # (With a Unix socket, and with TCP.)
    proxy = linked(start_proxy, own_directories, port, *flags)
    assert proxy.ready is not None, "\n".join(proxy.lines)

    async def use(rig: NearRig) -> None:
        async with a_client(rig, own_directories) as client:
            await asyncio.to_thread(compute, client)
            stopping = asyncio.create_task(asyncio.to_thread(proxy.stop))
            # The proxy's own goodbye comes first.
            assert await asyncio.to_thread(client.ended.wait, DEADLINE_S)
            assert await rig.state(LinkState.OVER) == "the far end was stopped"
            assert await stopping == 0

    with_a_link(port, use)
    assert not [line for line in proxy.lines if not GLOG.match(line)]


# ---- the end of either process


def test_the_far_end_ends_with_its_proxy(
    start_proxy: StartProxy, own_directories: Path, port: int
) -> None:
    proxy = linked(start_proxy, own_directories, port)
    far = far_process(proxy)

    async def use(rig: NearRig) -> None:
        async with a_client(rig, own_directories) as client:
            await asyncio.to_thread(compute, client)
            await asyncio.to_thread(proxy.kill)
            assert await rig.state(LinkState.OVER) == "the proxy has ended"
            assert await asyncio.to_thread(client.ended.wait, DEADLINE_S)

    with_a_link(port, use)
    psutil.wait_procs([far], DEADLINE_S)
    assert not far.is_running()


def test_a_far_end_that_was_killed_is_started_again(
    start_proxy: StartProxy, own_directories: Path, port: int
) -> None:
    proxy = linked(start_proxy, own_directories, port)

    def accepted() -> int:
        return int(counters(proxy)[f"{NS}_accepted_connections_total"])

    async def lose(rig: NearRig) -> None:
        async with a_client(rig, own_directories) as client:
            await asyncio.to_thread(compute, client)
            # (It reports once per second; what it has not reported is lost with it.)
            await asyncio.to_thread(wait_until, lambda: accepted() == 2)
            far_process(proxy).kill()
            reason = await rig.state(LinkState.OVER)
            assert reason == "the far end was restarted, and with it the session's data is lost"
            assert await asyncio.to_thread(client.ended.wait, DEADLINE_S)

    async def use(rig: NearRig) -> None:
        async with a_client(rig, own_directories) as client:
            await asyncio.to_thread(compute, client)

    with_a_link(port, lose)
    proxy.wait_for_line(r"The link's far end has ended with exit code -9, and with it the sessions")
    proxy.wait_for_line(rf"The link's far end listens on port {port}", times=2)
    with_a_link(port, use)
    # Counters go on; gauges begin anew.
    wait_until(lambda: accepted() >= 3)
    assert counters(proxy)[f"{NS}_restarts_total"] == 1
    wait_until(lambda: counters(proxy)[f"{NS}_sessions"] == 0)


def test_connections_without_the_token_are_counted_and_logged(
    start_proxy: StartProxy, own_directories: Path, port: int
) -> None:
    proxy = linked(start_proxy, own_directories, port)

    async def test() -> None:
        async with a_near_end(port, token=b"another"):
            await asyncio.to_thread(
                proxy.wait_for_line, r"refused \d+ connections without the token"
            )

    run(test)
    values = counters(proxy)
    assert values[f"{NS}_refused_connections_total"] > 0
    assert values[f"{NS}_accepted_connections_total"] == 0


def test_a_proxy_without_a_link_has_no_counters_of_one(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    with_link = {
        name for name in values_of(families_of(ask(address_of(proxy)))) if name.startswith(NS)
    }
    assert not with_link
