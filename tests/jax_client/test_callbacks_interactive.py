"""Debuggers inside callbacks, at a terminal, and callbacks over a slow link."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

from tests.jax_client.conftest import DEADLINE_S, PRELUDE, REPOSITORY, Proxies, run_program

ATTACHING = """
attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
import jax, jax.numpy as jnp
def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
"""

DEBUGGED = """
def broken_into(x):
    y = x * 2
    jax.debug.breakpoint()
    return y + 1

def with_pdb(v):
    w = np.asarray(v) * 3
    import pdb; pdb.set_trace()
    return w

x = jnp.arange(3.0)
print("first", jax.block_until_ready(jax.jit(broken_into)(x)), flush=True)
second = jax.jit(lambda x: jax.pure_callback(with_pdb, like(x), x))(x)
print("second", jax.block_until_ready(second), flush=True)
attachment.detach()
print("left", flush=True)
"""


class Terminal:
    """A terminal with a program at it."""

    def __init__(self, source: str, *arguments: str) -> None:
        self._ours, theirs = os.openpty()
        self._seen = b""
        with os.fdopen(theirs, "rb", buffering=0) as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(source), *arguments],
                stdin=stream,
                stdout=stream,
                stderr=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env={**os.environ, "JAX_PLATFORMS": "", "TERM": "dumb"},
                start_new_session=True,
            )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def until(self, word: str) -> str:
        """Reads up to a word; returns what came before it."""
        deadline = time.monotonic() + DEADLINE_S
        while word.encode() not in self._seen:
            ready, _, _ = select.select([self._ours], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {word!r} in {self._seen!r}"
            try:
                more = os.read(self._ours, 4096)
            except OSError:
                more = b""
            assert more, f"it ended before {word!r}: {self._seen!r}"
            self._seen += more
        before, _, self._seen = self._seen.partition(word.encode())
        return before.decode()

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())


def test_debuggers_in_callbacks_read_the_terminal(proxies: Proxies) -> None:
    terminal = Terminal(PRELUDE + ATTACHING + DEBUGGED, proxies[0].address)
    with contextlib.closing(terminal):
        terminal.until("(jdb) ")
        terminal.type("p y")
        assert "Array([0., 2., 4.]" in terminal.until("(jdb) ")
        terminal.type("c")
        terminal.until("first [1. 3. 5.]")
        terminal.until("(Pdb) ")
        terminal.type("p w")
        assert "array([0., 3., 6.]" in terminal.until("(Pdb) ")
        terminal.type("c")
        terminal.until("second [0. 3. 6.]")
        terminal.until("left")
        assert terminal.process.wait(DEADLINE_S) == 0


#: Seconds that each byte is under way, in each direction.
DELAY_S = 0.05


@contextlib.contextmanager
def delayed(address: str) -> Iterator[str]:
    """Gives an address from which all bytes are passed on, each a while later."""
    loop = asyncio.new_event_loop()
    bound: list[str] = []
    started = threading.Event()
    stopped = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(_pass_both_ways, "127.0.0.1", 0)
        bound.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.set()
        async with server:
            await stopped.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        try:
            await asyncio.gather(_pass_on(reader, there[1]), _pass_on(there[0], writer))
        finally:
            writer.close()
            there[1].close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(DEADLINE_S)
        yield bound[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(DEADLINE_S)
        loop.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(deliver())
        data = b"x"
        while data:
            with contextlib.suppress(OSError):
                data = b""
                data = await reader.read(1 << 16)
            under_way.put_nowait((loop.time() + DELAY_S, data))


SLOWLY = """
body = lambda i, x: (jax.debug.print("x is {}", i), x + 1)[1]
x = jax.jit(lambda x: jax.lax.fori_loop(0, 30, body, x))(jnp.float32(3))
big = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, like(x), x))(
    jnp.zeros(1 << 20)
)
assert float(x) == 33 and float(big.sum()) == 1 << 20
def bad(_):
    raise ValueError("no such thing")
failing = jax.jit(lambda x: (jax.debug.callback(bad, x), x)[1])(1.0)
try:
    failing.block_until_ready()
except jax.errors.JaxRuntimeError as error:
    assert "ValueError: no such thing" in str(error)
else:
    raise AssertionError("it did not fail")
attachment.detach()
"""


def test_callbacks_over_a_slow_link(proxies: Proxies) -> None:
    with delayed(proxies[0].address) as address:
        done = run_program(PRELUDE + ATTACHING + SLOWLY, address)
    assert done.stdout.splitlines() == [f"x is {i}" for i in range(30)]
