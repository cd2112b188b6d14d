"""The far end as a process, as beside a proxy: its start, its reports, its end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import shared_pathways_service
from harness.processes import DEADLINE_S, REPOSITORY
from shared_pathways_service.tunnel.link.near_end import LinkState
from tests.tunnel.link.far_programs import COMMAND, FarProgram, far_program
from tests.tunnel.link.near_ends import NearRig, a_near_end
from tests.tunnel.link.rigs import Handler, echo, run

PACKAGE = Path(shared_pathways_service.__file__).parent
#: All files of the package that the program may need, beside its own folder's.
NEEDED = (
    "__init__.py",
    "version.py",
    "patience/__init__.py",
    "patience/factor.py",
    "patience/slowness.py",
    "patience/timeouts.py",
    "patience/within.py",
    "runtime/__init__.py",
    "runtime/allocator.py",
    "runtime/listeners.py",
    "tunnel/__init__.py",
    "tunnel/liveness.py",
)
#: The far end, which does not give up a near end that is slow to read.
PATIENT = (
    "from shared_pathways_service.tunnel.link import __main__, far_end; import sys; "
    f"far_end._DRAIN_S = {DEADLINE_S}; sys.exit(__main__.main(sys.argv[1:]))"
)
#: The near end's own.
NOT_NEEDED = ("near_end.py", "near_handshake.py")


async def exchange(rig: NearRig, data: bytes) -> asyncio.StreamWriter:
    """Sends bytes to an echo and back, on a connection that stays open."""
    reader, writer = await rig.connect()
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    return writer


@contextlib.asynccontextmanager
async def a_server(handler: Handler, path: Path | None = None) -> AsyncIterator[str]:
    """Serves in place of the proxy; yields the target."""
    if path is None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(handler, path)
        target = f"unix:{path}"
    try:
        yield target
    finally:
        server.close()


Use = Callable[[FarProgram, NearRig], Awaitable[None]]


async def with_program(
    directory: Path, target: str, use: Use, *flags: str, command: tuple[str, ...] = COMMAND
) -> None:
    with far_program(directory, target, *flags, command=command) as program:
        port = await asyncio.to_thread(lambda: program.port)
        async with a_near_end(port) as rig:
            await use(program, rig)


# ---- the program


def test_it_needs_only_the_standard_library_and_its_own_folder(tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "shared_pathways_service"
    link = copy / "tunnel" / "link"
    link.mkdir(parents=True)
    for name in NEEDED:
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(PACKAGE / name, copy / name)
    for path in (PACKAGE / "tunnel" / "link").glob("*.py"):
        if path.name not in NOT_NEEDED:
            shutil.copy(path, link / path.name)
    # Isolated, without site-packages, and with this copy alone on the path.
    start = (
        f"import sys; sys.path.append({str(copy.parent)!r}); "
        "import runpy; "
        "runpy.run_module('shared_pathways_service.tunnel.link', run_name='__main__')"
    )

    async def test() -> None:
        async with a_server(echo) as target:
            command = (sys.executable, "-I", "-S", "-c", start)
            with far_program(tmp_path, target, command=command, cwd=tmp_path) as program:
                port = await asyncio.to_thread(lambda: program.port)
                async with a_near_end(port) as rig:
                    (await exchange(rig, b"x" * 100_000)).close()

    run(test)


def test_a_target_may_be_a_unix_socket(tmp_path: Path) -> None:
    async def test() -> None:
        async def use(_: FarProgram, rig: NearRig) -> None:
            (await exchange(rig, b"x" * 100_000)).close()

        async with a_server(echo, tmp_path / "s") as target:
            await with_program(tmp_path, target, use)

    run(test)


def test_it_reports_changes(tmp_path: Path) -> None:
    async def test() -> None:
        async def use(program: FarProgram, rig: NearRig) -> None:
            await rig.state(LinkState.UP)
            both = await asyncio.to_thread(program.report, lambda report: report["carriers"] == 2)
            assert (both["accepted"], both["sessions"], both["refused"]) == (2, 1, 0)
            async with a_near_end(rig.way.port, token=b"another"):
                await asyncio.to_thread(program.report, lambda report: report["refused"])

        async with a_server(echo) as target:
            await with_program(tmp_path, target, use)

    run(test)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--target=nowhere"], "neither HOST:PORT nor unix:/PATH"),
        (["--target=unix:relative"], "neither HOST:PORT nor unix:/PATH"),
        (["--target=127.0.0.1:70000"], "neither HOST:PORT nor unix:/PATH"),
        (["--token_file=/no/such/file"], "cannot read --token_file=/no/such/file: No such file"),
        (["--token_file=/dev/null"], "contains no token"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], said: str, tmp_path: Path) -> None:
    with far_program(tmp_path, "127.0.0.1:1", *flags) as program:
        assert program.wait() == 2
        assert said in program.log.decode()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with far_program(tmp_path, "127.0.0.1:1", port=port) as program:
            assert program.wait() == 1
            assert f"cannot listen on port {port}: " in program.log.decode()


# ---- its end


async def goodbye(
    directory: Path, stop: Callable[[FarProgram], object], *flags: str
) -> tuple[int, str]:
    """Ends a program in use; returns its exit code, and the reason at the near end."""
    results: list[tuple[int, str]] = []

    async def use(program: FarProgram, rig: NearRig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        stop(program)
        reason = await rig.state(LinkState.OVER)
        assert await reader.read() == b""
        writer.close()
        results.append((await asyncio.to_thread(program.wait), reason))

    async with a_server(echo) as target:
        await with_program(directory, target, use, *flags)
    return results[0]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_near_ends_learn_why(sig: signal.Signals, tmp_path: Path) -> None:
    async def test() -> None:
        result = await goodbye(tmp_path, lambda program: program.process.send_signal(sig))
        assert result == (0, "the far end was stopped")

    run(test)


def test_it_ends_with_its_standard_input_if_asked_to(tmp_path: Path) -> None:
    def stop(program: FarProgram) -> None:
        assert program.process.stdin
        program.process.stdin.close()

    async def test() -> None:
        result = await goodbye(tmp_path, stop, "--ends_with_stdin")
        assert result == (0, "the proxy has ended")

    run(test)


def test_what_the_proxy_sent_before_the_end_arrives(tmp_path: Path) -> None:
    last_words = b"y" * 3_000_000

    async def test() -> None:
        async def use(program: FarProgram, rig: NearRig) -> None:
            reader, writer = await rig.connect()
            writer.write(b"x")
            # (The server is done: all that follows is on its way.)
            await sent.wait()
            program.process.terminate()
            assert await reader.read() == last_words
            assert await rig.state(LinkState.OVER) == "the far end was stopped"
            writer.close()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            writer.write(last_words)
            writer.close()
            await writer.wait_closed()
            sent.set()

        sent = asyncio.Event()
        async with a_server(handle) as target:
            command = (sys.executable, "-P", "-c", PATIENT)
            await with_program(tmp_path, target, use, command=command)

    run(test)


def test_a_near_end_that_does_not_read_does_not_delay_the_end(tmp_path: Path) -> None:
    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()

    async def test() -> None:
        async def use(program: FarProgram, rig: NearRig) -> None:
            _, writer = await rig.connect()
            writer.write(b"x")
            await rig.state(LinkState.UP)
            for carrier in rig.way.carriers:
                carrier._transport.pause_reading()  # type: ignore[attr-defined]
            program.process.terminate()
            assert await asyncio.to_thread(program.wait) == 0
            writer.close()

        async with a_server(flood) as target:
            await with_program(tmp_path, target, use)

    run(test)


def test_a_far_end_that_was_killed_and_started_again_ends_the_session(tmp_path: Path) -> None:
    async def test() -> None:
        async def use(program: FarProgram, rig: NearRig) -> None:
            reader, writer = await rig.connect()
            writer.write(b"x")
            await reader.readexactly(1)
            program.process.kill()
            await asyncio.to_thread(program.wait)
            await rig.state(LinkState.LOST)
            # (Not on the same port, which another program may have by now.)
            with far_program(tmp_path, target) as second:
                rig.way.port = await asyncio.to_thread(lambda: second.port)
                reason = await rig.state(LinkState.OVER)
                await asyncio.to_thread(second.report, lambda report: report["unknown"])
            assert reason == "the far end was restarted, and with it the session's data is lost"
            assert await reader.read() == b""
            writer.close()

        async with a_server(echo) as target:
            await with_program(tmp_path, target, use)

    run(test)


def test_a_proxy_that_dies_closes_the_local_connections(tmp_path: Path) -> None:
    program_text = (
        "import socket, sys\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\n"
        "accepted = [server.accept()[0] for _ in range(2)]\n"
        "accepted[0].sendall(b'a')\n"
        "accepted[1].sendall(b'b')\n"
        "sys.stdin.read()\n"
    )

    async def test() -> None:
        async def use(_program: FarProgram, rig: NearRig) -> None:
            connections = [await rig.connect() for _ in range(2)]
            for _, writer in connections:
                writer.write(b"x" * 100_000)
            for reader, _ in connections:
                await reader.readexactly(1)
            proxy.kill()
            for reader, writer in connections:
                assert await reader.read() == b""
                writer.close()
            # The session goes on: another proxy may come.
            assert rig.states == [(LinkState.UP, "")]

        await with_program(tmp_path, f"127.0.0.1:{port}", use)

    with subprocess.Popen(
        [sys.executable, "-c", program_text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as proxy:
        assert proxy.stdout
        port = int(proxy.stdout.readline())
        try:
            run(test)
        finally:
            proxy.kill()


def test_the_command_is_the_modules() -> None:
    shown = subprocess.run(
        [*COMMAND, "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    for flag in ("--port", "--bind_address", "--target", "--token_file", "--keep_s"):
        assert flag in shown.stdout
