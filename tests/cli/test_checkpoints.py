"""`sps checkpoints`, of directories made by hand: it needs neither Orbax nor arrays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shared_pathways_service import cli
from shared_pathways_service.elastic.checkpoints.files import Folder, write_manifest
from shared_pathways_service.elastic.progress import Progress


def sps(*words: str | Path) -> Result:
    application = cli._app("checkpoints")
    return CliRunner().invoke(application, ["checkpoints", *map(str, words)])


def made(directory: Path, step: int, *, loss: float = 0.25) -> Path:
    """Makes what a committed checkpoint looks like."""
    path = directory / str(step)
    (path / "state" / "d").mkdir(parents=True)
    (path / "progress").mkdir()
    (path / "state" / "d" / "numbers").write_bytes(bytes(5000))
    (path / "_CHECKPOINT_METADATA").write_text(
        json.dumps({"commit_timestamp_nsecs": 1_700_000_000_000_000_000 + step})
    )
    write_manifest(path, Progress(step=step, epoch=step // 100, loss=loss), checksums=True)
    (path / "commit_success.txt").touch()
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one checkpoint of each state."""
    directory = tmp_path / "checkpoints"
    for step in (100, 200, 300, 400, 500):
        made(directory, step)
    folder = Folder(directory)
    damaged = dataclasses.replace(folder.info(200), reason="moved by hand")
    folder.quarantine(damaged, now="2023-11-15T00:00:00.000Z")
    (directory / "300/state/d/numbers").write_bytes(bytes(4000))
    (directory / "400/state/d/numbers").write_bytes(bytes(4999) + b"1")
    (directory / "500/commit_success.txt").unlink()
    (directory / "notes").mkdir()
    return tmp_path


def test_the_states(run: Path) -> None:
    for place in (run, run / "checkpoints", f"{run}/checkpoints/"):
        result = sps(place, "--json")
        assert result.exit_code == 0
        told = json.loads(result.stdout)
        assert [(one["step"], one["state"]) for one in told] == [
            (100, "committed"),
            (300, "damaged"),
            (400, "committed"),
            (500, "uncommitted"),
            (200, "quarantined"),
        ]
    assert told[0]["epoch"] == 1
    assert told[0]["loss"] == 0.25
    assert told[0]["bytes"] > 5000
    assert told[0]["time"] == "2023-11-14T22:13:20.000Z"
    assert told[0]["reason"] is None
    assert told[1]["reason"] == "state/d/numbers has 4000 bytes, and was written with 5000"
    assert told[3]["reason"] == "it was not finished"
    assert told[4]["path"] == f"{run}/checkpoints/quarantine/200-1"
    assert told[4]["epoch"] == 2


def test_the_checksums(run: Path) -> None:
    told = json.loads(sps(run, "--json", "--verify").stdout)
    assert [one["state"] for one in told[:3]] == ["committed", "damaged", "damaged"]
    assert told[2]["reason"].endswith("its checksum differs")


def test_the_table(run: Path) -> None:
    made(run / "checkpoints", 600, loss=float("nan"))
    lines = [line.split() for line in sps(run).stdout.splitlines()]
    assert lines[0] == ["STEP", "EPOCH", "LOSS", "SIZE", "STATE", "WHEN"]
    assert lines[1] == ["100", "1", "0.25", "5.1", "KiB", "committed", "2023-11-14T22:13:20.000Z"]
    assert lines[4][:2] == ["500", "-"]
    assert lines[5][2] == "nan"
    assert " ".join(lines[-1]) == f"{run}/checkpoints/quarantine/200-1: moved by hand"
    told = json.loads(sps(run, "--json").stdout)
    assert told[4]["loss"] is None


def test_a_torn_manifest(run: Path) -> None:
    manifest = run / "checkpoints/100/progress/progress.json"
    for text in (
        "",
        "{}",
        "[1]",
        manifest.read_text()[:-9],
        manifest.read_text().replace("1", "2"),
    ):
        manifest.write_text(text)
        first = json.loads(sps(run, "--json").stdout)[0]
        assert first["state"] == "damaged"
        assert first["reason"].startswith("progress/progress.json: it ")


def test_none(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        result = sps(place)
        assert result.exit_code == 3
        assert f"there are no checkpoints in {place}" in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_store_that_is_not_known() -> None:
    result = sps("ftps://host/run")
    assert result.exit_code == 2
    assert "gs://BUCKET" in result.stderr
