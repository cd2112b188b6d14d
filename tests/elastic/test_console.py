"""Lines on standard output: at once, and never the end of a training."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared_pathways_service.elastic.console import ConsoleLines
from shared_pathways_service.events import Event

KEPT = Event.of("checkpoint.kept", source="elastic", step=1, data={"path": "/ä/1"})
LINE = "Found commit_success file. Keeping /ä/1/.\n"

#: Prints until it notices nothing, then goes on to its end.
_TRAINER = """
import sys
from shared_pathways_service.elastic.console import ConsoleLines
from shared_pathways_service.events import Event

told = ConsoleLines()
for step in range(3000):
    told(Event.of("elastic.step", source="elastic", step=step, duration_s=0.1))
print("the program's own line")
sys.stderr.write("trained to the end")
"""


def test_it_prints_to_standard_output_as_it_is_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ConsoleLines()
    sink(KEPT)
    assert capsys.readouterr().out == LINE
    other = io.StringIO()
    monkeypatch.setattr(sys, "stdout", other)
    sink(KEPT)
    sink(Event.of("slice.down", source="elastic"))
    assert other.getvalue() == LINE
    monkeypatch.setattr(sys, "stdout", None)
    sink(KEPT)


def test_a_stream_of_ones_own_is_flushed_and_may_know_few_letters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="ascii") as stream:
        ConsoleLines(stream)(KEPT)
        assert path.read_text() == LINE.replace("ä", "\\xe4")
    # Closed by now, and that is all the same.
    ConsoleLines(stream)(KEPT)


class _Full(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_all_the_same() -> None:
    stream = _Full()
    ConsoleLines(stream)(KEPT)
    assert stream.getvalue() == LINE


def test_a_reader_that_goes_does_not_end_the_training() -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    with trainer:
        assert trainer.stdout is not None
        assert trainer.stderr is not None
        assert trainer.stdout.readline().startswith(b"completed step: 0, ")
        trainer.stdout.close()
        assert trainer.stderr.read() == b"trained to the end"
    assert trainer.returncode == 0
