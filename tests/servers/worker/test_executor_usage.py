"""What an executor uses: memory and processor time of all its processes, also of ended ones."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import psutil
import pytest

from harness.processes import REPOSITORY
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.servers.worker.executor_usage import Usage, UsageMeter

pytestmark = pytest.mark.real_starts

_MIB = 1 << 20
#: Does what each line says, in a child process with "child": computes for 0.3 s of processor time,
#: or takes memory and keeps it.
_BUSY = """
    import signal, subprocess, sys, time
    kept = []
    below = None
    for line in sys.stdin:
        where, what = line.split()
        if where == "child":
            below = below or subprocess.Popen(
                [sys.executable, "-c", sys.argv[1], sys.argv[1]],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            below.stdin.write("here " + what + "\\n"); below.stdin.flush(); below.stdout.readline()
        elif what == "compute":
            end = time.process_time() + 0.3
            while time.process_time() < end: pass
        elif what == "take":
            kept.append(bytearray(b"x") * (64 << 20))
        elif what == "ignore":
            # The system removes children that end, and does not count their time for this process.
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        elif what == "end":
            print("done", flush=True)
            break
        if where == "child" and what == "end":
            below.wait()
        print("done", flush=True)
"""


class Busy:
    """A process that computes and takes memory when it is told to, itself or in a child."""

    def __init__(self) -> None:
        code = textwrap.dedent(_BUSY)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, where: str, what: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{where} {what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextlib.contextmanager
def busy() -> Iterator[Busy]:
    running = Busy()
    with running.process:
        try:
            yield running
        finally:
            running.process.kill()


def _read(meter: UsageMeter) -> Usage:
    usage = meter.read()
    assert usage is not None
    return usage


def test_memory_and_processor_time_are_those_of_the_whole_tree() -> None:
    now = 0.0
    with busy() as running:
        meter = UsageMeter(identity_of(running.process.pid), lambda: now)
        running.do("here", "compute")
        now = 10.0
        first = _read(meter)
        assert first.cpu_seconds >= 0.25
        assert first.cpu_percent == round(10 * first.cpu_seconds)
        assert 0 < first.resident_bytes < 64 * _MIB

        running.do("here", "take")
        running.do("child", "take")
        running.do("child", "compute")
        now = 10.5
        second = _read(meter)
        assert second.resident_bytes >= first.resident_bytes + 128 * _MIB
        grown = second.cpu_seconds - first.cpu_seconds
        assert grown >= 0.25
        assert second.cpu_percent == round(200 * grown)

        # What the child used is not lost with it; its memory is free.
        running.do("child", "end")
        now = 11.0
        third = _read(meter)
        assert third.cpu_seconds >= second.cpu_seconds
        assert third.resident_bytes < second.resident_bytes
    assert meter.read() is None


def test_time_that_is_no_longer_known_does_not_count_backwards() -> None:
    now = 0.0
    with busy() as running:
        meter = UsageMeter(identity_of(running.process.pid), lambda: now)
        running.do("here", "ignore")
        running.do("child", "compute")
        now = 1.0
        first = _read(meter)
        [child] = psutil.Process(running.process.pid).children()
        assert first.cpu_seconds >= 0.25
        child.kill()
        child.wait()
        now = 2.0
        second = _read(meter)
        assert second.cpu_seconds >= first.cpu_seconds
        running.do("here", "compute")
        now = 3.0
        assert _read(meter).cpu_seconds >= second.cpu_seconds + 0.25


@pytest.mark.parametrize("function", ["children", "oneshot"])
def test_a_measurement_that_the_system_refuses_is_left_out(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    now = 0.0

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with busy() as running:
        meter = UsageMeter(identity_of(running.process.pid), lambda: now)
        running.do("here", "compute")
        now = 1.0
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, function, refuse)
            assert meter.read() is None
        # The next one is since the start, as that one changed nothing.
        now = 10.0
        usage = _read(meter)
        assert usage.cpu_seconds >= 0.25
        assert usage.cpu_percent == round(10 * usage.cpu_seconds)


def test_orphans_of_a_worker_that_adopts_them_count() -> None:
    code = """
        import os, subprocess, sys, time
        from shared_pathways_service.runtime.processes import identity_of
        from shared_pathways_service.servers.worker.executor_usage import UsageMeter
        from shared_pathways_service.servers.worker.orphans import adopt_orphans, kill_orphans
        adopt_orphans("--colocated_python")
        orphan = (
            "import time; kept = bytearray(b'x') * (64 << 20); print('taken', flush=True); "
            "time.sleep(600)"
        )
        parent = '(exec "$0" -c "$1" &) ; exec sleep 600'
        executor = subprocess.Popen(
            ["sh", "-c", parent, sys.executable, orphan], stdout=subprocess.PIPE, text=True
        )
        assert executor.stdout.readline() == "taken\\n"
        print(UsageMeter(identity_of(executor.pid)).read().resident_bytes)
        executor.kill()
        executor.wait()
        kill_orphans(10.0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env=dict(os.environ),
    )
    assert int(done.stdout) >= 64 * _MIB
