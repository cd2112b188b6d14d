from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.processes import DEADLINE_S, REPOSITORY, ServerProcess
from shared_pathways_service.runtime.glog import glog, read_log_format, send_logging_to_glog
from shared_pathways_service.runtime.processes import identity_of, signal_process
from shared_pathways_service.servers.serving.process import ProcessWatch, report_ready

pytestmark = pytest.mark.race

GLOG_LINE = r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_process\.py:\d+\] "


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


# ---- log


def test_a_line_has_the_form_of_glog(capfd: pytest.CaptureFixture[str]) -> None:
    glog("I", "Pathways Server serving on [::]:29001")
    line = capfd.readouterr().err
    assert re.fullmatch(GLOG_LINE + r"Pathways Server serving on \[::\]:29001\n", line)
    assert line.split()[2] == str(os.getpid())


def test_a_message_cannot_forge_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    glog("W", "one\nI0000 two")
    assert capfd.readouterr().err.count("\n") == 1


def test_a_name_that_is_no_text_is_written_all_the_same(
    capfd: pytest.CaptureFixture[str],
) -> None:
    glog("E", f"no such file: {os.fsdecode(b'/tmp/' + bytes([0xFF]))}")
    assert capfd.readouterr().err.endswith("no such file: /tmp/\\udcff\n")


def test_lines_of_many_threads_do_not_mix(capfd: pytest.CaptureFixture[str]) -> None:
    def write(number: int) -> None:
        for _ in range(50):
            glog("I", f"{number}" * 200)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 200
    assert all(re.fullmatch(GLOG_LINE + r"(\d)\1{199}", line) for line in lines)


def test_records_of_logging_appear_in_the_same_form(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        send_logging_to_glog()
        logging.getLogger("some.library").warning("half %s", "full")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert re.fullmatch("W" + GLOG_LINE[6:] + "half full\n", capfd.readouterr().err)


def test_json_is_one_object_a_line_whatever_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        send_logging_to_glog(log_format=read_log_format("json"))
        glog("E", f"two\nlines of {os.fsdecode(b'/tmp/' + bytes([0xFF]))}")
        logging.getLogger("some.library").warning("half %s", "full")
    finally:
        send_logging_to_glog(log_format=read_log_format("text"))
        root.handlers[:] = before
        root.setLevel(level)
    first, second = (json.loads(line) for line in capfd.readouterr().err.splitlines())
    assert (first["severity"], first["message"]) == ("ERROR", "two\nlines of /tmp/\udcff")
    assert (first["pid"], first["where"].startswith("test_process.py:")) == (os.getpid(), True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", first["time"])
    assert (second["severity"], second["message"]) == ("WARNING", "half full")
    glog("I", "as before")
    assert re.fullmatch(GLOG_LINE + "as before\n", capfd.readouterr().err)
    with pytest.raises(ValueError, match="glog or json"):
        read_log_format("xml")


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        ("resource_manager", ["--instance_type=tpuv6e:2x2", "--instance_count=1"]),
        ("worker", ["--resource_manager_address=127.0.0.1:1", "--slice_id=slice-0"]),
        ("proxy", ["--virtual_slices=tpuv6e:2x2"]),
    ],
)
def test_each_server_logs_json_on_request(module: str, flags: list[str]) -> None:
    name = f"shared_pathways_service.servers.{module}"
    with ServerProcess(name, [*flags, "--server_port=0", "--log_format=json"]) as server:
        line = server.wait_for_line("serving on")
        assert json.loads(line)["severity"] == "INFO"


# ---- identity


def test_a_reused_process_id_is_recognised(
    sleeper: subprocess.Popen[bytes],
) -> None:
    identity = identity_of(sleeper.pid)
    assert identity.is_alive()
    earlier = dataclasses.replace(identity, start="earlier")
    assert not earlier.is_alive()
    assert not signal_process(earlier, signal.SIGKILL)
    assert sleeper.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="others know no start but by the clock")
def test_a_step_of_the_clock_changes_no_identity(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = identity_of(sleeper.pid)
    # What start times are counted from where they are seconds since the epoch: it moves.
    stepped = psutil.boot_time() + 3600
    monkeypatch.setattr("psutil._pslinux.BOOT_TIME", stepped, raising=False)
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: stepped)
    assert identity.is_alive()
    assert identity_of(sleeper.pid) == identity


def test_the_very_process_is_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper.pid)
    assert signal_process(identity, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    # Not reaped yet: the zombie has the id still, and is no living process.
    assert not identity.is_alive()
    assert not signal_process(identity, signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        identity_of(sleeper.pid)
    assert not signal_process(identity, signal.SIGTERM)


# ---- watch


def test_a_watch_reports_the_end_once(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper.pid)
    ended = threading.Semaphore(0)
    with contextlib.closing(ProcessWatch(identity, ended.release)):
        assert not ended.acquire(blocking=False)
        sleeper.kill()
        assert ended.acquire(timeout=DEADLINE_S)
    assert not ended.acquire(blocking=False)


def test_a_watch_of_an_ended_process_fires_at_once(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    ended = threading.Event()
    with contextlib.closing(ProcessWatch(identity, ended.set)):
        assert ended.wait(DEADLINE_S)


def test_a_closed_watch_is_silent_and_leaves_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper.pid)
    before = len(list(Path("/dev/fd").iterdir()))
    ended = threading.Event()
    watch = ProcessWatch(identity, ended.set)
    watch.close()
    watch.close()
    sleeper.kill()
    sleeper.wait()
    assert not ended.is_set()
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_watch_may_be_closed_by_what_it_calls(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper.pid)
    closed = threading.Event()
    watches: list[ProcessWatch] = []
    made = threading.Event()

    def close() -> None:
        made.wait()
        watches[0].close()
        closed.set()

    watches.append(ProcessWatch(identity, close))
    made.set()
    sleeper.kill()
    assert closed.wait(DEADLINE_S)


# ---- life with a parent

CHILD = """
    import os, signal, sys, threading
    from shared_pathways_service.servers.serving.process import exit_with_parent
    watch = exit_with_parent(int(sys.argv[1]), lambda: os._exit(7))
    print("ready", os.getpid(), flush=True)
    threading.Event().wait()
"""

PARENT = """
    import os, subprocess, sys, threading
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
    threading.Event().wait()
"""


def test_a_child_ends_with_its_parent() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PARENT), textwrap.dedent(CHILD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as parent:
        assert parent.stdout
        word, pid = parent.stdout.readline().split()
        assert word == "ready"
        identity = identity_of(int(pid))
        ended = threading.Event()
        with contextlib.closing(ProcessWatch(identity, ended.set)):
            parent.kill()
            assert ended.wait(DEADLINE_S)


def test_one_that_is_no_direct_child_is_called_back(sleeper: subprocess.Popen[bytes]) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(sleeper.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        assert child.stdout
        assert child.stdout.readline().startswith("ready")
        sleeper.kill()
        assert child.wait(DEADLINE_S) == 7


def test_a_parent_that_is_gone_already_is_noticed(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(sleeper.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        assert child.wait(DEADLINE_S) == 7


# ---- start and stop


STOPPING = """
    import sys
    from shared_pathways_service.servers.serving.process import install_stop_signals
    stop = install_stop_signals()
    print("ready", flush=True)
    stop.wait()
    print("stopped", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_sets_the_event_and_the_next_ones_do_nothing(sig: signal.Signals) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STOPPING)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        child.send_signal(sig)
        assert child.stdout.readline() == "stopped\n"
        child.send_signal(sig)
        assert child.stdin
        child.stdin.close()
        assert child.wait(DEADLINE_S) == 0


#: The main thread lets signals pass: the kernel gives them to another one, as it may at any time.
DEAF = """
    import signal
    from shared_pathways_service.servers.serving.process import STOP_SIGNALS, install_stop_signals
    stop = install_stop_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    print("ready", flush=True)
    stop.wait()
"""


def test_a_stop_signal_taken_by_another_thread_is_handled() -> None:
    command = [sys.executable, "-c", textwrap.dedent(DEAF)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        child.terminate()
        try:
            assert child.wait(DEADLINE_S) == 0
        finally:
            child.kill()


EARLY = """
    import os, signal, threading
    from shared_pathways_service.servers.serving.process import CaughtSignals
    caught = CaughtSignals([signal.SIGHUP, signal.SIGTERM])
    signal.signal(signal.SIGUSR1, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        os.kill(os.getpid(), number)
    came, both = [], threading.Event()
    def note(number):
        came.append(number)
        if len(came) == 2:
            both.set()
    caught.pass_to(note)
    both.wait()
    print(came == [signal.SIGTERM, signal.SIGHUP])
"""


def test_signals_that_came_before_are_passed_on_in_order_and_others_are_not() -> None:
    command = [sys.executable, "-c", textwrap.dedent(EARLY)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=REPOSITORY, timeout=DEADLINE_S
    )
    assert done.stdout == "True\n"


def test_ready_is_one_line_and_the_end_of_the_stream() -> None:
    read_fd, write_fd = os.pipe()
    report_ready(write_fd, port=29001, socket="/run/rm")
    with os.fdopen(read_fd) as ready:
        data = json.loads(ready.read())
    assert data == {"port": 29001, "socket": "/run/rm", "pid": os.getpid()}


def test_ready_works_without_a_reader() -> None:
    report_ready(None, port=1)
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    report_ready(write_fd, port=1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(write_fd)
