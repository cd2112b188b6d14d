"""Who owns a session, and what becomes of it when that process is gone, however it went."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.deadlines import deadline
from shared_pathways_service.agent.owner import wait_for_end
from shared_pathways_service.runtime.processes import Identity, identity_of
from tests.agent.support import Bench, eventually, serve

pytestmark = pytest.mark.race

ROOT = Path(__file__).parents[2]

CLIENT = """
import json, os, sys, time
from pathlib import Path
from tests.agent.support import Bench, serve
bench = Bench(Path(sys.argv[1]))
with bench.session(bench.start(fail_deletes=2)) as (session, heard):
    serve(session)
    forked = os.fork() if "fork" in sys.argv else 0
    if "fork" in sys.argv and forked == 0:
        time.sleep(600)
        os._exit(0)
    print(json.dumps({"agent": session.pid, "forked": forked}), flush=True)
    sys.stdin.readline()
    if "exec" in sys.argv:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"])
    if "leave" in sys.argv:
        os._exit(3)
    time.sleep(600)
"""


@contextlib.contextmanager
def client(bench: Bench, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """A program with a session that serves; ends with the test, as do children that it forked."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CLIENT, str(bench.root), *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        said: dict[str, int] = json.loads(process.stdout.readline())
        assert bench.home.proxies
        # (Only now: without its client, the agent deletes the proxy.)
        process.stdin.write("go on\n")
        process.stdin.flush()
        try:
            yield process, said
        finally:
            process.kill()
            if said["forked"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(said["forked"], signal.SIGKILL)


def gone(bench: Bench, agent: int) -> None:
    eventually(bench.nothing_left, "the agent to take the proxy down")
    eventually(lambda: not psutil.pid_exists(agent) or is_zombie(agent), "the agent to end")


def is_zombie(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_client_leaves_nothing(bench: Bench, number: signal.Signals) -> None:
    with client(bench) as (process, said):
        process.send_signal(number)
        assert process.wait() == -number
        gone(bench, said["agent"])


def test_a_client_that_is_not_reaped_is_gone_all_the_same(bench: Bench) -> None:
    with client(bench) as (process, said):
        process.send_signal(signal.SIGKILL)
        gone(bench, said["agent"])
        assert process.returncode is None


def test_forked_children_that_live_on_keep_nothing_alive(bench: Bench) -> None:
    with client(bench, "fork") as (process, said):
        process.kill()
        gone(bench, said["agent"])
        assert not is_zombie(said["forked"])


def test_a_client_that_leaves_without_a_word_leaves_nothing(bench: Bench) -> None:
    with client(bench, "leave") as (process, said):
        assert process.wait() == 3
        gone(bench, said["agent"])


def test_a_client_that_becomes_another_program_leaves_nothing(bench: Bench) -> None:
    with client(bench, "exec") as (process, said):
        gone(bench, said["agent"])
        assert process.poll() is None


def test_what_client_and_agent_left_is_swept_up_by_the_next(bench: Bench) -> None:
    with client(bench) as (process, said):
        os.kill(said["agent"], signal.SIGKILL)
        process.kill()
        process.wait()
    [left] = bench.home.proxies
    eventually(lambda: bench.journal.entries()[0].abandoned, "both to be gone")
    with bench.session(bench.start()) as (session, _):
        serve(session)
        eventually(lambda: bench.home.proxies == [session_of(bench)], "the sweep")
        assert session_of(bench) != left
    eventually(bench.nothing_left, "all to be gone")


def session_of(bench: Bench) -> str | None:
    own = [entry for entry in bench.journal.entries() if entry.owner == identity_of()]
    return own[0].session if own else None


def test_what_a_living_client_began_is_not_swept_up(bench: Bench) -> None:
    with client(bench) as (_, said), bench.session(bench.start()) as (session, _):
        os.kill(said["agent"], signal.SIGKILL)
        serve(session)
        assert session.close("done") is None
        assert len(bench.home.proxies) == 1
        assert len(bench.journal.entries()) == 1


# ---- identities


def test_a_process_is_alive_until_it_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        identity = identity_of(process.pid)
        assert identity.is_alive()
        assert Identity.from_json(json.loads(json.dumps(identity.to_json()))) == identity
        assert not Identity(pid=process.pid, start="another").is_alive()
        process.kill()
        # Not reaped yet, and over all the same.
        eventually(lambda: not identity.is_alive(), "its end")
    assert not identity.is_alive()
    with pytest.raises(ProcessLookupError):
        identity_of(process.pid)


def test_waiting_for_an_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        identity = identity_of(process.pid)

        async def watch() -> None:
            waiting = asyncio.create_task(wait_for_end(identity))
            done, _ = await asyncio.wait({waiting}, timeout=0.05)
            assert not done
            process.kill()
            await asyncio.wait_for(waiting, deadline(60.0))
            # It has ended already, or is another's number by now.
            await asyncio.wait_for(wait_for_end(identity), deadline(60.0))
            other = Identity(pid=os.getpid(), start="another")
            await asyncio.wait_for(wait_for_end(other), deadline(60.0))

        asyncio.run(watch())
