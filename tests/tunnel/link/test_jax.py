"""JAX computes through a link whose carriers are cut, with the same results as without."""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.layers.thorough import thorough
from harness.processes import ServerProcess, run_async
from shared_pathways_service.tunnel.link.carriers import Carrier, CarrierOwner, TcpCarrier
from shared_pathways_service.tunnel.link.far_end import FarEnd
from shared_pathways_service.tunnel.link.near_end import NearEnd, NearOptions
from tests.tunnel.link.heard import Heard
from tests.tunnel.link.near_ends import listen

DEADLINE_S = deadline(300.0)
TOKEN = b"a token of the tenant"

#: Steps that read a value each, compilations, uploads and downloads.
PROGRAM = """
import hashlib
import jax, jax.numpy as jnp, numpy as np

digest = hashlib.sha256()
step = jax.jit(lambda x, y: jnp.tanh(x @ y) + 0.1)
x, y = jnp.ones((32, 32)), jnp.eye(32) * 0.3
for i in range(40):
    x = step(x, y)
    digest.update(repr(float(x[0, 0])).encode())
    if i % 8 == 0:
        large = np.arange(500_000, dtype=np.float32) * (i + 1)
        digest.update(np.asarray(jax.jit(lambda a, i=i: a + i)(jax.device_put(large))).tobytes())
print(digest.hexdigest())
"""


async def run_program(address: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        env={
            **os.environ,
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": f"grpc://unix:{address}",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        out, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0
    return out.decode().strip()


@pytest.mark.parametrize("early_from_s", [*thorough(0.0), math.inf])
def test_jax_computes_the_same_while_carriers_are_cut(
    own_directories: Path, early_from_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is, JAX is recognized and each buffer is looked up.
    monkeypatch.setenv("SPS_PATIENCE", "10")
    proxy_socket, near_socket = own_directories / "p", own_directories / "n"
    carriers: list[Carrier] = []
    dialled = 0

    def connect() -> socket.socket:
        local = socket.socket(socket.AF_UNIX)
        local.setblocking(False)
        local.connect(str(proxy_socket))
        return local

    async def test() -> None:
        loop = asyncio.get_running_loop()
        far = FarEnd(TOKEN, connect)
        port = await far.start("127.0.0.1", 0)

        async def dial(owner: CarrierOwner) -> None:
            nonlocal dialled
            dialled += 1
            _, carrier = await loop.create_connection(lambda: TcpCarrier(owner), "127.0.0.1", port)
            carriers.append(carrier)

        numbers = NearOptions(max_backoff_s=0.1, early_from_s=early_from_s)
        near = NearEnd(dial, TOKEN, Heard(), numbers)
        near.start()
        listener = listen(loop, near_socket, near.accept)
        cutting = loop.create_task(cut_at_random(carriers))
        try:
            through_link = await run_program(str(near_socket))
        finally:
            cutting.cancel()
            loop.remove_reader(listener.fileno())
            listener.close()
            await near.close()
            await far.close()
        assert through_link == await run_program(str(proxy_socket))
        assert dialled > 10
        # Each step reads a value; of the downloads none is small.
        assert near.early_buffers.taken >= 30 if early_from_s == 0 else not near.early_buffers.taken
        assert near.early_buffers.kept_bytes == 0

    async def with_deadline() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    flags = (f"--server_socket={proxy_socket}", "--virtual_slices=tpuv6e:2x2")
    with ServerProcess("shared_pathways_service.servers.proxy", flags):
        run_async(with_deadline())


async def cut_at_random(carriers: list[Carrier]) -> None:
    pauses = random.Random(4)
    while True:
        await asyncio.sleep(pauses.uniform(0.0, 0.2))
        for carrier in carriers:
            carrier.close()
        carriers.clear()
