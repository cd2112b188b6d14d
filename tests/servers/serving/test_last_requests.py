from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import REPOSITORY
from shared_pathways_service.runtime.last_requests import Unfinished, parse_unfinished
from shared_pathways_service.servers.serving.last_requests_file import LastRequests, read_unfinished
from shared_pathways_service.servers.supervisor.endings import explain_crash


def test_what_runs_and_the_last_requests_in_their_order(tmp_path: Path) -> None:
    last = LastRequests(str(tmp_path / "last"))
    assert (tmp_path / "last").stat().st_mode & 0o777 == 0o600
    slices = [last.place(f"on slice {index}") for index in range(2)]
    for number in range(100):
        last.add("execute_request", f"jit_{number}")
    slices[0].begin("one")
    slices[1].begin("two")
    slices[0].end()
    found = read_unfinished(tmp_path / "last")
    assert found.running == ("two on slice 1",)
    assert found.requests == tuple(f"execute_request jit_{number}" for number in range(76, 100))


def test_a_pods_message_has_room_for_all(tmp_path: Path) -> None:
    last = LastRequests(str(tmp_path / "last"), 4096)
    for number in range(100):
        last.add("execute_request", "é" * number)
    for index in range(7):
        last.place(f"on slice {index}").begin("jit_step")
    text = (tmp_path / "last").read_bytes().decode()
    assert len(text.encode()) == 4096
    assert {len(line.encode()) for line in text.splitlines()} == {127}
    found = parse_unfinished(text)
    assert found is not None
    assert found.running == tuple(f"jit_step on slice {index}" for index in range(7))
    assert len(found.requests) == 24
    # What is not this is left alone.
    assert parse_unfinished("") is None
    assert parse_unfinished("Traceback\n  at 1 x\n1 y") is None


def test_an_end_in_order_leaves_nothing(tmp_path: Path) -> None:
    last = LastRequests(str(tmp_path / "last"))
    last.add("execute_request")
    last.take_back()
    assert (tmp_path / "last").read_bytes() == b""
    with pytest.raises(TypeError):
        last.add("execute_request")


def test_long_and_strange_names(tmp_path: Path) -> None:
    last = LastRequests(str(tmp_path / "last"))
    last.add("é" * 1000)
    last.add("a\nb\ud800")
    first, second = read_unfinished(tmp_path / "last").requests
    assert first == "é" * 57
    assert second == "a?b?"


def test_the_numbers_of_a_proxy_that_lives_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(itertools, "count", lambda *_: iter(range(10**8 - 2, 10**12)))
    last = LastRequests(str(tmp_path / "last"))
    for number in range(4):
        last.add("execute_request", f"jit_{number}")
    found = read_unfinished(tmp_path / "last")
    assert found.requests == tuple(f"execute_request jit_{number}" for number in range(4))


@pytest.mark.parametrize("data", [b"", b"\xff" * 10_000, b"x" * 300])
def test_a_file_that_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "last").write_bytes(data)
    for text in read_unfinished(tmp_path / "last").requests:
        assert text.isprintable()
    assert read_unfinished(tmp_path / "absent") == Unfinished(running=(), requests=())


def test_the_file_has_its_room_on_the_disk(tmp_path: Path) -> None:
    # A page that is still to be found room for would end the process, were there none.
    LastRequests(str(tmp_path / "last"))
    found = (tmp_path / "last").stat()
    assert found.st_blocks * 512 >= found.st_size > 0


@pytest.mark.parametrize("path", ["/dev/full", "/absent/last"])
def test_without_a_file_it_goes_on(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    if path == "/dev/full" and not Path(path).exists():
        pytest.skip("no such device here")
    last = LastRequests(path)
    last.add("execute_request")
    last.place("on slice 0").begin("one")
    (line,) = capfd.readouterr().err.splitlines()
    assert f"are not recorded in {path}: [Errno " in line


def test_it_outlives_a_process_that_crashes(tmp_path: Path) -> None:
    source = """
import os, signal, sys
from shared_pathways_service.servers.serving.last_requests_file import LastRequests
last = LastRequests(sys.argv[1])
last.add("compile_request")
last.place("on slice 0").begin("jit_step")
os.kill(os.getpid(), signal.SIGSEGV)
"""
    command = [sys.executable, "-c", source, str(tmp_path / "last")]
    done = subprocess.run(command, cwd=REPOSITORY, env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGSEGV
    found = read_unfinished(tmp_path / "last")
    assert found == Unfinished(running=("jit_step on slice 0",), requests=("compile_request",))


def test_a_report_that_cannot_be_written_is_no_reason_to_be_silent(tmp_path: Path) -> None:
    unfinished = Unfinished(running=("f on slice 1",), requests=("a", "b", "c", "d"))
    told = explain_crash("killed by SIGSEGV", unfinished, tmp_path / "absent" / "log")
    assert told == (
        "killed by SIGSEGV while it was running f on slice 1; its last requests, newest first: "
        "d, c, b"
    )
