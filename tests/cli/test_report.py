"""`sps report`, of a run that was recorded.

The run: 3 slices, a compilation of 5 s, steps of 1 s; a checkpoint at step 10, which blocked 0.5 s.
Slice 1 goes after step 20, and is waited for in vain; back to step 10 on two slices, whose steps
take 1.5 s. The process is killed after step 30, the word of its last event cut off; the next one
comes 20 s later, on a machine whose clock shows something else, and goes on from step 20 to 22.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.deadlines import deadline
from shared_pathways_service import cli
from shared_pathways_service.cli.display import report_png

SAMPLE = Path(__file__).parent / "sample_run"
WALL_S = 98.5
SECONDS = {
    "goodput": 10 + 15 + 2,
    "startup": 1 + 2 + 1 + 1,
    "compile": 5 + 1.5 + 1,
    "lost_steps": 10 + 15,
    "waiting": 1 + 5.9,
    "detect": 3,
    "confirm": 1.1,
    "reconnect": 0,
    "restore": 1 + 1,
    "checkpoint": 0.5,
    "snapshot": 0,
    "down": 20,
    "other": 0.5,
}


def sps(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli", "report", *map(str, arguments)],
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
        capture_output=True,
        text=True,
        timeout=deadline(120.0),
        check=False,
        cwd=Path(__file__).parents[2],
    )


def invoked(*arguments: str | Path) -> Result:
    """The same within this process, which is quicker."""
    words = ["report", *map(str, arguments)]
    return CliRunner().invoke(cli._app("report"), words, prog_name="sps")


def test_the_sample_is_whole() -> None:
    assert sum(SECONDS.values()) == WALL_S


def test_json() -> None:
    done = invoked(SAMPLE, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["wall_s"] == pytest.approx(WALL_S)
    assert {"goodput": told["good_s"], **told["badput_s"]} == pytest.approx(SECONDS, abs=1e-6)
    assert told["goodput"] == pytest.approx(27 / WALL_S)
    assert (told["steps"], told["steps_lost"], told["last_step"]) == (22, 20, 22)
    assert (told["processes"], told["attempts"], told["outcome"]) == (2, 3, "done")
    assert (told["checkpoints"], told["slice_losses"]) == (1, {"1": 1})
    assert told["skipped_lines"] == 1
    once = {"count": 1, "mean_s": 11, "median_s": 11, "max_s": 11}
    assert told["mttr"]["slice_down"] == pytest.approx(once)
    assert told["mttr"]["process"]["max_s"] == pytest.approx(25)
    assert [i["lost_steps"] for i in told["incidents"]] == [10, 10]
    assert [c["count"] for c in told["slice_counts"]] == [0, 3, 2, 0, 3, 0]


def test_tables_and_a_timeline() -> None:
    done = sps(SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines]
    assert lines[0] == "since 2025-10-09T08:53:20.000Z: 1 min 38 s, done"
    assert lines[1] == "goodput 27.4%, last step 22"
    assert "steps completed: 22, lost: 20, processes: 2" in lines[2]
    assert lines[2].endswith("lines not read: 1")
    assert ["goodput", "27.0", "s", "27.4%"] in rows
    assert ["down", "20.0", "s", "20.3%"] in rows
    assert "snapshot" not in {row[0] for row in rows if row}
    assert ["slice_down", "1", *["11.0", "s"] * 3, "10"] in rows
    assert ["1", "1", "x"] in rows
    # No terminal, and so neither colours nor letters that a log may not know.
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert max(map(len, lines[-8:])) <= 80
    assert lines[-1].endswith("1 min 38 s")


def test_a_terminal_is_filled_and_coloured() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb") as terminal:
        sps_process = subprocess.Popen(
            [sys.executable, "-m", "shared_pathways_service.cli", "report", str(SAMPLE)],
            stdout=theirs,
            env={**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"},
            cwd=Path(__file__).parents[2],
        )
        os.close(theirs)
        told = b""
        with sps_process:
            while chunk := _read(terminal.fileno()):
                told += chunk
    assert sps_process.returncode == 0
    [highest] = [line for line in told.decode().splitlines() if "slices 3" in line]
    assert "█" * 20 in highest
    assert "\x1b[" in highest
    plain = told.decode().splitlines()[-1].removesuffix("\x1b[0m").partition("m")[2]
    assert len(plain) == 100


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        # How Linux tells that nobody writes to a terminal any more.
        return b""


def test_a_picture(tmp_path: Path) -> None:
    done = sps(SAMPLE, "--png", tmp_path / "run", "--json", DISPLAY="", MPLCONFIGDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["steps"] == 22
    assert (tmp_path / "run").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "run.png"
    done = invoked(SAMPLE, "--png", path)
    assert done.exit_code == 1
    assert "pip install 'shared-pathways-service[report]'" in done.stderr
    assert not path.exists()


@pytest.mark.real_starts
def test_no_command_but_for_a_picture_imports_matplotlib() -> None:
    source = "import sys, shared_pathways_service.cli.commands.training.report; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert not {"matplotlib", "jax", "grpc", "numpy"} & set(done.stdout.split())
    assert report_png.__name__ not in done.stdout


@pytest.mark.parametrize("there", ["nothing", "a file", "an empty ledger", "another's ledger"])
def test_without_a_ledger_it_ends_with_3(tmp_path: Path, there: str) -> None:
    run = tmp_path / "run"
    if there == "a file":
        run.touch()
    elif there != "nothing":
        run.mkdir()
        (run / "ledger.jsonl").write_text("" if there == "an empty ledger" else '{"a": 1}\n')
    done = invoked(run)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")
    assert "ledger.jsonl" in done.stderr


def test_a_run_in_a_store_is_wrong_usage() -> None:
    done = invoked("gs://bucket/run")
    assert done.exit_code == 2
    assert "bucket" in done.stderr


def test_a_run_that_is_killed_at_once(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(ledger.read_text().splitlines()[0] + "\n")
    done = invoked(tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "0.00 s, killed, or still running" in done.stdout
