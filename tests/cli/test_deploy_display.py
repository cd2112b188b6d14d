"""What a person sees of a service that comes up."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import pytest
from rich.console import Console

from shared_pathways_service.cli.display import deploy_display
from shared_pathways_service.cli.display.deploy_display import display
from tests.cli.starting_service import FIRST, HEAD, SECOND, readiness


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with display(quiet=False) as look:
        for pods in ([SECOND], [HEAD, FIRST, SECOND], [HEAD, FIRST, SECOND], [HEAD, FIRST]):
            look(readiness(pods), pods)
    first, second, third = written.getvalue().splitlines()
    assert first.startswith("sps: pw: 0/2 slices are ready, but the head is not")
    assert second.startswith("sps: pw: 1/2 slices are ready (")
    assert "second: it waits for a node" in second
    assert "1 of 1 pods of slice 1 of worker are missing" in third


def test_an_unwritable_terminal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    reader, writer = os.pipe()
    os.close(reader)
    # (What was written is still there when the pipe is closed.)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w", buffering=1) as pipe:
        for stream in (pipe, None):
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", stream)
                with display(quiet=False) as look:
                    look(readiness([SECOND]), [SECOND])
            shown.append(stream)
    assert shown == [pipe, None]


def test_nothing_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with display(quiet=True) as look:
        look(readiness([HEAD]), [HEAD])
    assert capsys.readouterr() == ("", "")


def test_a_table_of_head_and_workers_on_a_terminal() -> None:
    out = io.StringIO()
    pods = [SECOND, FIRST, HEAD]
    picture = deploy_display._picture(readiness(pods), pods)
    Console(file=out, width=120).print(picture)
    title, head, first, second, last = (line.split() for line in out.getvalue().splitlines())
    assert title == ["part", "slice", "pod", "node", "restarts", "state"]
    assert head == ["head", "head", "cpu", "0", "ready"]
    assert first == ["worker", "worker-0", "first", "tpu-0", "0", "ready"]
    assert second == ["worker", "worker-1", "second", "-", "0", "it", "waits", "for", "a", "node"]
    assert " ".join(last) == "pw: 1/2 slices are ready"
