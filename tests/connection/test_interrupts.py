"""Ctrl-C in a program whose call of JAX waits for a lost link, and does not return to Python."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.signals import suspend
from shared_pathways_service.connection.interrupts import InterruptWatch
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.testing.fake_home import FakeHome
from tests.agent.support import eventually
from tests.jax_client.conftest import DEADLINE_S, run_proxy, start_program

LOST = LinkView(state="lost", lost_at=0.0)

#: A connection to a real proxy, through an agent whose home is a script. A Python whose parent
#: ignores SIGINT, as a shell's background does, would ignore it as well.
CONNECTED = """
import dataclasses, functools, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from shared_pathways_service import isc_pathways
from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.agent.request import start_of
from shared_pathways_service.connection import connection as module
from shared_pathways_service.homes.choice import HomeChoice
from tests.agent.fake_agent import COMMAND
import jax, numpy as np
def orders(*arguments):
    options = {"directory": sys.argv[1], "address": sys.argv[2], "pod": "p-x"}
    return dataclasses.replace(start_of(*arguments), home=HomeChoice(name="fake", options=options))
module.AgentSession = functools.partial(AgentSession, command=COMMAND)
module.start_of = orders
def say(text):
    print(text, flush=True)
try:
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}):
        double = jax.jit(lambda x: x * 2)
        array = double(jax.device_put(np.ones(16, np.float32))).block_until_ready()
        say("connected")
        sys.stdin.readline()
        say("computing")
        COMPUTE
except KeyboardInterrupt:
    say("interrupted")
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}):
    say("connected again" if sys.stdin.readline() else "")
"""


class Run:
    """A program that computes, while its proxy does not answer."""

    def __init__(
        self, program: subprocess.Popen[str], home: FakeHome, proxy: psutil.Process
    ) -> None:
        self.program = program
        self.home = home
        self.proxy = proxy
        self.stderr: list[str] = []
        assert program.stderr is not None
        self._reader = threading.Thread(target=lambda: self.stderr.extend(program.stderr or ()))
        self._reader.start()

    def heard(self) -> str:
        assert self.program.stdout is not None
        line = self.program.stdout.readline().strip()
        assert line, "".join(self.stderr)
        return line

    def go_on(self) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write("go\n")
        self.program.stdin.flush()

    def interrupt(self) -> None:
        self.program.send_signal(signal.SIGINT)

    def has_said(self, text: str) -> bool:
        assert self.program.poll() is None, "".join(self.stderr)
        return text in "".join(self.stderr)

    def end(self) -> None:
        self.proxy.resume()
        assert self.program.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.program.stdin.close()
        try:
            self.program.wait(DEADLINE_S)
        finally:
            self.program.kill()
            self._reader.join()


@contextlib.contextmanager
def computing(directory: Path, compute: str, *, is_lost: bool) -> Iterator[Run]:
    """Yields a program whose main thread waits for a proxy that is stopped."""
    home = FakeHome(str(directory / "home"))
    (directory / "home").mkdir()
    with run_proxy(directory, "c", slices=2) as proxy:
        source = CONNECTED.replace("COMPUTE", compute)
        with start_program(source, str(directory / "home"), proxy.address) as program:
            assert program.stderr is not None
            run = Run(program, home, psutil.Process(proxy.pid))
            try:
                assert run.heard() == "connected"
                if is_lost:
                    [session] = home.proxies
                    home.tell(session, "link.lost", "reset by the peer")
                    eventually(lambda: run.has_said("link lost"), "the loss")
                suspend(run.proxy.pid)
                run.go_on()
                assert run.heard() == "computing"
                wait_until_blocked(program)
                yield run
            finally:
                run.end()
            assert program.returncode == 0, "".join(run.stderr)


def wait_until_blocked(program: subprocess.Popen[str]) -> None:
    """Waits until the program's main thread waits for something, and goes on doing so."""
    main = Path(f"/proc/{program.pid}/task/{program.pid}/stat")
    deadline = time.monotonic() + DEADLINE_S
    seen = 0
    while seen < 100:
        assert time.monotonic() < deadline
        asleep = main.read_text().rpartition(")")[2].split()[0] == "S"
        seen = seen + 1 if asleep else 0
        time.sleep(0.01)


#: After so many requests without an answer, the next one waits in gRPC.
DISPATCH = "\n        while True: array = double(array)"


def test_a_request_that_is_held_back_is_given_up_by_the_second(own_directories: Path) -> None:
    with computing(own_directories, DISPATCH, is_lost=True) as run:
        run.interrupt()
        eventually(lambda: run.has_said("interrupt (Ctrl-C) again to give the session up"), "it")
        run.interrupt()
        assert run.heard() == "interrupted"
        run.proxy.resume()
        run.go_on()
        assert run.heard() == "connected again"
    assert any(call.startswith("delete_proxy") for call in run.home.calls)
    assert run.home.proxies == []


def test_nothing_is_given_up_while_the_link_is_up(own_directories: Path) -> None:
    with computing(own_directories, DISPATCH, is_lost=False) as run:
        for _ in range(3):
            run.interrupt()
            time.sleep(1.2)
        assert not run.has_said("Ctrl-C")
        run.proxy.resume()
        assert run.heard() == "interrupted"
        run.go_on()
        assert run.heard() == "connected again"


# ---- in this process


def interrupt_this_process() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(DEADLINE_S)


class Watched:
    """A watch, and what it did."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.given_up = threading.Event()
        self.watch = InterruptWatch(
            lost_link=lambda: LOST, say=self.said.append, give_up=self.given_up.set
        )


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.watch.stop()
    assert signal.set_wakeup_fd(-1) == -1


def test_an_interrupt_that_python_handles_is_none_of_its_business(watched: Watched) -> None:
    watched.watch.start()
    handler = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupt_this_process()
        time.sleep(1.3)
    assert watched.said == []
    assert not watched.given_up.is_set()
    assert signal.getsignal(signal.SIGINT) is handler


def test_it_is_off_where_another_library_gets_the_signals(watched: Watched) -> None:
    with contextlib.ExitStack() as undo:
        reader, writer = os.pipe2(os.O_NONBLOCK)
        for descriptor in (reader, writer):
            undo.callback(os.close, descriptor)
        signal.set_wakeup_fd(writer)
        watched.watch.start()
        assert signal.set_wakeup_fd(-1) == writer


def test_another_library_may_take_the_signals_over(watched: Watched) -> None:
    watched.watch.start()

    async def handle() -> None:
        came = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, came.set)
        os.kill(os.getpid(), signal.SIGINT)
        await came.wait()
        watched.watch.stop()
        came.clear()
        os.kill(os.getpid(), signal.SIGINT)
        await came.wait()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    asyncio.run(asyncio.wait_for(handle(), DEADLINE_S))
    assert watched.said == []


def test_on_another_thread_it_is_off(watched: Watched) -> None:
    starting = threading.Thread(target=watched.watch.start)
    starting.start()
    starting.join()
    assert signal.set_wakeup_fd(-1) == -1


def test_a_watch_may_follow_one_that_was_stopped_on_another_thread(
    watched: Watched, capfd: pytest.CaptureFixture[str]
) -> None:
    watched.watch.start()
    stopping = threading.Thread(target=watched.watch.stop)
    stopping.start()
    stopping.join()
    with pytest.raises(KeyboardInterrupt):
        interrupt_this_process()
    later = Watched()
    later.watch.start()
    assert "sps-interrupts" in {thread.name for thread in threading.enumerate()}
    with pytest.raises(KeyboardInterrupt):
        interrupt_this_process()
    later.watch.stop()
    assert capfd.readouterr().err == ""


def test_a_forked_childs_signals_are_not_the_parents(watched: Watched) -> None:
    watched.watch.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if signal.set_wakeup_fd(-1) == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(KeyboardInterrupt):
        interrupt_this_process()
