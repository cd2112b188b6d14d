"""JAX's uploads when a link ends for good: the first fails alone, so that the process goes on."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.processes import ServerProcess, run_async
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.link.far_end import FarEnd
from shared_pathways_service.tunnel.link.near_end import NearEnd, NearOptions
from tests.tunnel.link.heard import Heard
from tests.tunnel.link.near_ends import listen
from tests.tunnel.link.rigs import TOKEN, Way

# (A fork has read the level of JAX's log already.)
pytestmark = [pytest.mark.race, pytest.mark.real_starts]

DEADLINE_S = deadline(300.0)
UPLOADS = 12

#: Begins uploads while the link is lost, and waits for their errors when it has ended.
PROGRAM = f"""
import numpy as np
import jax
from jax.extend.backend import ifrt_proxy
import sys

client = ifrt_proxy.get_client(sys.argv[1], ifrt_proxy.ClientConnectionOptions())
devices = client.devices()
jax.device_put(np.ones(2, np.float32), devices[0]).block_until_ready()
print("connected", flush=True)
assert sys.stdin.readline() == "lost\\n"
data = [np.full(1024, number, np.float32) for number in range({UPLOADS})]
arrays = [jax.device_put(each, devices[number % len(devices)]) for number, each in enumerate(data)]
print("uploading", flush=True)
for array in arrays:
    try:
        array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        assert "UNAVAILABLE" in str(error), error
    else:
        raise AssertionError("an array arrived")
del array, arrays, devices, client
print("failed", flush=True)
"""


async def lines_of_end(near: NearEnd, way: Way, address: Path) -> list[str]:
    """Runs the program, ends its link during its uploads, and returns JAX's log."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, f"grpc://unix:{address}"),
        env={
            **os.environ,
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "0",
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    log = asyncio.ensure_future(process.stderr.read())
    try:
        assert await process.stdout.readline() == b"connected\n", await log
        way.is_open.clear()
        way.cut()
        process.stdin.write(b"lost\n")
        assert await process.stdout.readline() == b"uploading\n", await log
        near.end("the pod has died")
        assert await process.stdout.readline() == b"failed\n", await log
        assert await process.wait() == 0, await log
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return (await log).decode().splitlines()


def test_one_upload_fails_before_the_others(own_directories: Path) -> None:
    proxy_socket, near_socket = own_directories / "p", own_directories / "n"

    def connect() -> socket.socket:
        local = socket.socket(socket.AF_UNIX)
        local.setblocking(False)
        local.connect(str(proxy_socket))
        return local

    async def test() -> None:
        loop = asyncio.get_running_loop()
        far = FarEnd(TOKEN, connect)
        way = Way(await far.start("127.0.0.1", 0))
        near = NearEnd(way.dial, TOKEN, Heard(), NearOptions(disconnect=Timeout(DEADLINE_S)))
        near.start()
        listener = listen(loop, near_socket, near.accept)
        try:
            lines = await lines_of_end(near, way, near_socket)
        finally:
            loop.remove_reader(listener.fileno())
            listener.close()
            await near.close()
            await far.close()
        failures = [number for number, line in enumerate(lines) if "background data-tr" in line]
        [ended, *_] = [
            number for number, line in enumerate(lines) if "calling session_->Finish()" in line
        ]
        # JAX's thread pool is gone before another upload fails.
        assert len(failures) > 1
        assert failures[0] < ended < failures[1], lines

    async def with_deadline() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    flags = (f"--server_socket={proxy_socket}", "--virtual_slices=tpuv6e:2x2")
    with ServerProcess("shared_pathways_service.servers.proxy", flags):
        run_async(with_deadline())
