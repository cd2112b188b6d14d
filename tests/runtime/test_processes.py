"""Processes are identified; one that cannot be looked at does not count as ended."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.processes import DEADLINE_S, REPOSITORY
from shared_pathways_service.errors import PreflightError
from shared_pathways_service.runtime import processes
from shared_pathways_service.runtime.processes import (
    Identity,
    Life,
    identity_of,
    identity_of_child,
    signal_process,
)

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
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_look_that_fails_for_lack_of_resources_says_nothing(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with refused_looks(monkeypatch, code) as running:
        assert running.is_alive()
        for look in (identity_of, identity_of_child):
            with pytest.raises(OSError, match=os.strerror(code)):
                look(running.pid)
        with pytest.raises(OSError, match=os.strerror(code)):
            signal_process(running, signal.SIGKILL)


@linux
@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.ENOENT, errno.ESRCH])
def test_a_process_that_may_not_be_looked_at_is_another_users_with_an_id_used_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with refused_looks(monkeypatch, code) as earlier:
        assert not earlier.is_alive()
        with pytest.raises(ProcessLookupError):
            identity_of(earlier.pid)
        assert not signal_process(earlier, signal.SIGKILL)


@contextlib.contextmanager
def refused_looks(monkeypatch: pytest.MonkeyPatch, code: int) -> Iterator[Identity]:
    """Refuses looks at a process that runs, and must run on, within the block."""

    def refuse(path: Path, **_arguments: object) -> str:
        raise OSError(code, os.strerror(code), str(path))

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        identity = identity_of(process.pid)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", refuse)
            yield identity
        assert process.poll() is None


@pytest.mark.parametrize("error", [psutil.AccessDenied, psutil.NoSuchProcess])
def test_without_proc_a_process_that_may_not_be_looked_at_is_not_ours_either(
    monkeypatch: pytest.MonkeyPatch, error: type[psutil.AccessDenied | psutil.NoSuchProcess]
) -> None:
    def refuse(pid: int) -> psutil.Process:
        raise error(pid)

    monkeypatch.setattr(psutil, "Process", refuse)
    assert processes._start_by_psutil(os.getpid()) is None


@linux
@pytest.mark.parametrize("proc", [{}, {"self": "17"}], ids=["none", "of another namespace"])
def test_a_process_that_is_not_in_proc_under_its_id_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: dict[str, str]
) -> None:
    """As in sandboxes: without /proc, or with a PID namespace and the /proc around it."""
    for name, target in proc.items():
        (tmp_path / name).symlink_to(target)
        (tmp_path / str(os.getpid())).mkdir()
        (tmp_path / str(os.getpid()) / "stat").write_text(f"1 (init) S{' 0' * 30}")

    def moved(path: str) -> Path:
        return tmp_path / path.removeprefix("/proc/") if path.startswith("/proc/") else Path(path)

    processes._boot_id()
    monkeypatch.setattr(processes, "Path", moved)
    with pytest.raises(PreflightError, match="not in /proc under its own id") as caught:
        identity_of()
    assert "mount -t proc proc /proc" in caught.value.hint


@linux
def test_a_child_known_to_have_ended_is_so_without_a_free_descriptor_as_well() -> None:
    code = """
        zombie = subprocess.Popen(["true"])
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        child = identity_of_child(zombie.pid)
        print(repr(child.start))
        exhaust()
        print(child.is_alive(), signal_process(child, signal.SIGKILL))
    """
    assert run(code) == ["''", "False False"]


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


HERE = "here@me"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Identity:
    """Returns this process, on a machine of a known id."""
    monkeypatch.setattr(processes, "_machine", lambda: HERE)
    monkeypatch.setattr(processes, "_namespace", lambda: processes._FIRST_NAMESPACE)
    return identity_of()


CONTAINER = "pid:[4026532456]"


@linux
@pytest.mark.parametrize(
    ("changes", "life"),
    [
        ({}, Life.RUNS),
        ({"start": "{boot}/1"}, Life.ENDED),
        ({"start": ""}, Life.ENDED),
        # Whether the machine has another name by now does not matter while it runs.
        ({"machine": "here@formerly"}, Life.RUNS),
        # It has restarted since.
        ({"start": "another-boot/1"}, Life.ENDED),
        ({"start": "another-boot/1", "machine": "here@formerly"}, Life.UNKNOWN),
        ({"start": "another-boot/1", "machine": "there@me"}, Life.UNKNOWN),
        ({"start": "another-boot/1", "machine": ""}, Life.UNKNOWN),
        ({"start": "another-boot/1", "namespace": CONTAINER}, Life.UNKNOWN),
        # A container of this machine has an id of its own for the process.
        ({"namespace": CONTAINER}, Life.UNKNOWN),
        # From an earlier release.
        ({"machine": "", "namespace": ""}, Life.RUNS),
        ({"start": "{boot}/1", "machine": "", "namespace": ""}, Life.ENDED),
        ({"start": "another-boot/1", "machine": "", "namespace": ""}, Life.UNKNOWN),
    ],
)
def test_nothing_is_said_of_processes_that_cannot_be_seen(
    machine: Identity, changes: dict[str, str], life: Life
) -> None:
    boot = machine.start.partition("/")[0]
    known = {name: value.format(boot=boot) for name, value in changes.items()}
    identity = dataclasses.replace(machine, **known)  # type: ignore[arg-type]
    assert identity.life() is life
    assert identity.is_alive() is (life is Life.RUNS)
    assert identity.has_ended() is (life is Life.ENDED)
    assert Identity.from_json(identity.to_json()) == identity


@linux
def test_in_a_container_a_restart_of_the_machine_cannot_be_told_from_another_one(
    machine: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_namespace", lambda: CONTAINER)
    there = dataclasses.replace(machine, start="another-boot/1", namespace=CONTAINER)
    assert there.life() is Life.UNKNOWN


@linux
def test_no_signal_goes_to_a_process_of_another_container(machine: Identity) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as running:
        same_number = dataclasses.replace(identity_of(running.pid), namespace=CONTAINER)
        assert not signal_process(same_number, signal.SIGKILL)
        assert running.poll() is None
        running.kill()


def test_an_identity_of_an_earlier_release_is_read() -> None:
    assert Identity.from_json({"pid": 7, "start": "b/1"}) == Identity(pid=7, start="b/1")
