"""Processes are identified; one that cannot be looked at does not count as ended."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from harness.processes import DEADLINE_S, REPOSITORY

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a look takes no descriptor")

#: Has a process that runs, and one that has ended; `exhaust` leaves so many free descriptors.
WITHOUT_DESCRIPTORS = """
import asyncio, errno, os, resource, signal, subprocess, threading
from shared_pathways_service.agent.owner import wait_for_end
from shared_pathways_service.runtime.processes import *
from shared_pathways_service.servers.serving.process import ProcessWatch

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
# (It ends with this program, whose pipe it reads.)
sleeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
alive = identity_of(sleeper.pid)
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
    ended = identity_of(other.pid)
    other.kill()

def exhaust(free=0):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.EMFILE
    for _ in range(free):
        os.close(taken.pop())
    return taken

def release(taken):
    for descriptor in taken:
        os.close(descriptor)

def error_of(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]
"""


def run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@linux
def test_without_a_free_descriptor_a_process_that_runs_does_not_count_as_ended() -> None:
    code = """
        exhaust()
        print(alive.is_alive(), ended.is_alive())
        print(error_of(lambda: identity_of(sleeper.pid)))
        print(error_of(lambda: identity_of_child(sleeper.pid)))
        print(error_of(lambda: signal_process(alive, signal.SIGKILL)))
        print(sleeper.poll())
        sleeper.kill()
        sleeper.wait()
        print(alive.is_alive())
    """
    assert run(code) == ["True False", "EMFILE", "EMFILE", "EMFILE", "None", "False"]


@linux
def test_without_a_free_descriptor_the_end_of_an_owner_is_waited_for() -> None:
    code = """
        async def main():
            exhaust()
            waiting = asyncio.create_task(wait_for_end(alive))
            await asyncio.sleep(0)
            print(waiting.done())
            sleeper.kill()
            sleeper.wait()
            await waiting
            print("ended")
        asyncio.run(main())
    """
    assert run(code) == ["False", "ended"]


@linux
def test_a_watch_that_begins_without_a_free_descriptor_reports_the_end() -> None:
    code = f"""
        has_ended = threading.Event()
        taken = exhaust(free=2)  # for the watch's own pipe
        watch = ProcessWatch(alive, has_ended.set)
        print(has_ended.is_set())
        release(taken)
        sleeper.kill()
        print(has_ended.wait({DEADLINE_S}))
        watch.close()
        myself = identity_of()
        exhaust(free=2)
        ProcessWatch(myself, print).close()
        print("closed")
    """
    assert run(code) == ["False", "True", "closed"]
