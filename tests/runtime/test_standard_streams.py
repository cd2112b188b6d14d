"""Standard streams that were closed, and text that they cannot represent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY
from shared_pathways_service.runtime.standard_streams import reserve_descriptors

WITHOUT_STREAMS = """
import json, os, sys
from shared_pathways_service.runtime.standard_streams import open_closed_streams
open_closed_streams()
streams = (sys.stdin, sys.stdout, sys.stderr)
sys.stderr.write("j\\udcfcrgen")
sys.stderr.flush()
with open(sys.argv[1], "w") as file:
    json.dump([[stream.fileno(), os.get_inheritable(stream.fileno())] for stream in streams], file)
"""
WRITING = """
import os, sys
from shared_pathways_service.runtime.standard_streams import open_closed_streams
open_closed_streams()
sys.stdout.write("loss \\u2192 " + os.fsdecode(b"j\\xfcrgen"))
"""


def test_closed_streams_are_the_null_device_under_their_own_numbers(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", WITHOUT_STREAMS, numbers],
        cwd=REPOSITORY,
        timeout=deadline(60.0),
        check=True,
    )
    assert json.loads(numbers.read_text()) == [[0, True], [1, True], [2, True]]


def test_a_number_that_another_thread_takes_costs_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    closed: list[int] = []
    really_open, really_close = os.open, os.close

    def is_closed(_number: int) -> None:
        raise OSError

    def open_it(path: str, *rest: int) -> int:
        number = really_open(path, *rest)
        if path == os.devnull:
            opened.append(number)
        return number

    def close_it(number: int) -> None:
        closed.append(number)
        really_close(number)

    with monkeypatch.context() as patched:
        patched.setattr("os.fstat", is_closed)
        patched.setattr("os.open", open_it)
        patched.setattr("os.close", close_it)
        reserve_descriptors()
    # (Each got the same number, that of the one before.)
    assert len(opened) == 3
    assert [number for number in closed if number in opened] == opened


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii:strict", rb"loss \u2192 j\udcfcrgen"),
        ("ascii:surrogateescape", rb"loss \u2192 j\udcfcrgen"),
        # (This one can represent all text, and names of files as they are.)
        ("utf-8:surrogateescape", "loss \u2192 j".encode() + b"\xfcrgen"),
        ("ascii:replace", b"loss ? j?rgen"),
    ],
)
def test_text_that_standard_output_cannot_represent(encoding: str, expected: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITING],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=deadline(60.0),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
