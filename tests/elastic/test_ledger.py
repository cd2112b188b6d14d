"""The ledger: what is written is there whatever becomes of the writer, and nothing else breaks."""

from __future__ import annotations

import dataclasses
import errno
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.small_disk import IS_POSSIBLE, small_disk
from shared_pathways_service.elastic.run_ledger import LEDGER_NAME, Ledger, read_ledger
from shared_pathways_service.errors import InvalidRequestError, PreflightError
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import TrainingStep

#: Writes events as fast as it can, and says so when there are a thousand.
_WRITER = """
import itertools, sys
from shared_pathways_service.elastic.run_ledger import Ledger
from shared_pathways_service.events import Event

ledger = Ledger(sys.argv[1])
for step in itertools.count():
    ledger(Event.of("elastic.step", source="elastic", step=step, data={"pad": "x" * 2000}))
    if step == 1000:
        print("going", flush=True)
"""


def event(step: int = 0, kind: str = "elastic.step", **data: str | float | None) -> Event:
    return Event.of(kind, source="elastic", step=step, duration_s=0.5, data=data)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    told = [
        event(1, loss=0.5),
        event(2, "checkpoint.saved", path="a/2"),
        event(3, text="ä\n\u2028"),
    ]
    with Ledger(tmp_path / "not" / "there") as ledger:
        for item in told:
            ledger(item)
        # Who reads need not wait until it is closed.
        assert list(read_ledger(tmp_path / "not" / "there")) == told
    assert len((tmp_path / "not" / "there" / LEDGER_NAME).read_bytes().splitlines()) == 3


def test_another_process_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for step in range(3):
        with Ledger(tmp_path) as ledger:
            ledger(event(step))
    assert [item.step for item in read_ledger(tmp_path)] == [0, 1, 2]


@pytest.mark.race
def test_kill_tears_the_last_line_at_most(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    with writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == b"going\n"
        finally:
            writer.kill()
    assert writer.returncode == -signal.SIGKILL
    with Ledger(tmp_path) as ledger:
        ledger(event(7, "elastic.run.started"))
    reader = read_ledger(tmp_path)
    *steps, last = list(reader)
    assert [item.step for item in steps] == list(range(len(steps)))
    assert len(steps) > 1000
    assert last.kind == "elastic.run.started"
    assert reader.skipped <= 1


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_a_torn_line_is_closed(tmp_path: Path, keep: int) -> None:
    with Ledger(tmp_path) as ledger:
        ledger(event(1))
        ledger(event(2))
    path = tmp_path / LEDGER_NAME
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:keep])
    with Ledger(tmp_path) as ledger:
        ledger(event(3))
        ledger(event(4))
    reader = read_ledger(tmp_path)
    # Without its newline alone the second line is whole.
    whole = keep == -1
    assert [item.step for item in reader] == ([1, 2, 3, 4] if whole else [1, 3, 4])
    assert reader.skipped == (0 if whole else 1)
    assert len(path.read_bytes().splitlines()) == 4


def test_lines_that_are_no_events_are_passed_over_and_counted(tmp_path: Path) -> None:
    good = event(1).to_json()
    bad = [
        "",  # not counted: nothing was lost with it
        "{",
        "null",
        "[1]",
        '"text"',
        "\x00" * 100,
        "[" * 100_000,
        '{"kind":"a"}',
        '{"kind":1,"source":"elastic","time":"2026-01-01T00:00:00Z","monotonic":1}',
        '{"kind":"a","source":"elastic","time":"soon","monotonic":1}',
        '{"kind":"a","source":"elastic","time":3,"monotonic":1}',
        '{"kind":"a","source":"elastic","time":"2026-01-01T00:00:00","monotonic":1}',
        '{"kind":"a","source":"elastic","time":"2026-01-01T00:00:00Z","monotonic":NaN}',
        '{"kind":"a","source":"elastic","time":"2026-01-01T00:00:00Z","monotonic":"1"}',
        good.replace('"duration_s":0.5', '"duration_s":"long"'),
        good.replace('"step":1', '"step":1.5'),
        good.replace('"step":1', '"step":true'),
        good.replace('"step":1', '"step":1,"data":[]'),
        good.replace('"step":1', '"step":1,"data":{"a":{}}'),
        good.replace('"step":1', '"step":1,"slice":[]'),
    ]
    newer = good.replace('"step":1', '"step":2,"colour":"red"')
    lines = [line.encode() for line in [good, *bad, newer]]
    (tmp_path / LEDGER_NAME).write_bytes(b"\n".join([*lines, b"\xff\xfe", good[:30].encode()]))
    reader = read_ledger(tmp_path)
    assert [item.step for item in reader] == [1, 2]
    assert reader.skipped == len(bad) - 1 + 2


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    many = 300
    with Ledger(tmp_path) as ledger:

        def write(name: str, kind: str) -> None:
            for step in range(many):
                ledger(event(step, kind, who=name, pad="x" * 500))

        kinds = {"trains": "elastic.step", "also trains": "elastic.step", "probes": "slice.suspect"}
        threads = [threading.Thread(target=write, args=pair) for pair in kinds.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader = read_ledger(tmp_path)
    steps: dict[object, list[int | None]] = {}
    for item in reader:
        steps.setdefault(item.data["who"], []).append(item.step)
    assert reader.skipped == 0
    assert steps == {name: list(range(many)) for name in kinds}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.float32(0.5), 0.5),
        (np.float32("nan"), "nan"),
        (np.int64(3), 3),
        (np.array([1.0]), "[1.]"),
        (True, True),
        (None, None),
    ],
)
def test_no_value_is_a_reason_to_end_training(tmp_path: Path, value: Any, told: object) -> None:
    with Ledger(tmp_path) as ledger:
        ledger(event(1, "of.a.program", loss=value))
    [found] = read_ledger(tmp_path)
    assert found.data == {"loss": told}


@pytest.mark.parametrize(
    ("loss", "written"),
    [(math.nan, b'"nan"'), (-math.inf, b'"-inf"'), (np.float32(0.5), b"0.5")],
)
def test_any_loss_of_a_step_is_read_as_it_was(tmp_path: Path, loss: Any, written: bytes) -> None:
    with Ledger(tmp_path) as ledger:
        ledger(TrainingStep(step=1, loss=loss))
    assert b'"data":{"loss":' + written + b"}" in (tmp_path / LEDGER_NAME).read_bytes()
    [found] = read_ledger(tmp_path)
    assert isinstance(found, TrainingStep)
    assert found.loss == pytest.approx(float(loss), nan_ok=True)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    took: Any = np.float32(0.5)
    with Ledger(tmp_path) as ledger:
        ledger(dataclasses.replace(event(np.int64(3)), slice=np.int32(1), duration_s=took))  # type: ignore[arg-type]
        ledger(dataclasses.replace(event(4), duration_s=math.nan))
    first, second = read_ledger(tmp_path)
    assert (first.step, first.slice, first.duration_s) == (3, 1, 0.5)
    assert second.duration_s is None


def test_only_rare_events_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    with Ledger(tmp_path) as ledger:
        ledger(event(1))
        ledger(event(1, "snapshot.taken"))
        assert not synced
        ledger(event(1, "slice.down"))
        assert synced == [(tmp_path / LEDGER_NAME).stat().st_size]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full: Linux has")
def test_a_full_disk_is_reported_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / LEDGER_NAME).symlink_to("/dev/full")
    with Ledger(tmp_path) as ledger, caplog.at_level(logging.WARNING):
        for step in range(5):
            ledger(event(step, "slice.down"))
    assert ledger.lost == 5
    [record] = caplog.records
    assert record.getMessage() == (
        f"{tmp_path / LEDGER_NAME} is not complete: cannot write in {tmp_path}: "
        "No space left on device; free space there, or set directory= to another directory"
    )


@pytest.mark.skipif(not IS_POSSIBLE, reason="only root can mount a small file system")
def test_a_disk_without_room_for_the_ledger_is_named_with_what_to_do() -> None:
    # (It has room for itself only.)
    with small_disk(64 << 10, files=1) as disk, pytest.raises(PreflightError) as caught:
        Ledger(disk / "run")
    assert caught.value.message == f"cannot write in {disk / 'run'}: No space left on device"
    assert caught.value.hint == "free space there, or set directory= to another directory"


def test_a_line_that_was_written_in_part_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    with Ledger(tmp_path) as ledger:
        ledger(event(1))
        # As on a disk that was full in the middle of the line, and then more than full.
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:17]))
        ledger(event(2))
        monkeypatch.setattr(os, "write", _full)
        ledger(event(3))
        monkeypatch.setattr(os, "write", write)
        ledger(event(4))
        ledger(event(5))
    reader = read_ledger(tmp_path)
    assert [item.step for item in reader] == [1, 4, 5]
    assert (reader.skipped, ledger.lost, len(caplog.records)) == (1, 2, 1)


def _full(_file: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_after_close_nothing_is_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger(event(1))
    ledger.close()
    ledger.close()
    ledger(event(2))
    ledger(event(2, "slice.down"))
    assert [item.step for item in read_ledger(tmp_path)] == [1]
    assert ledger.lost == 0


def test_a_signal_handler_may_record_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    sync = os.fsync

    def interrupted(file: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        signal.raise_signal(signal.SIGUSR1)
        sync(file)

    before = signal.signal(signal.SIGUSR1, lambda *_: ledger(event(2, "slice.down")))
    try:
        monkeypatch.setattr(os, "fsync", interrupted)
        ledger(event(1, "slice.down"))
    finally:
        signal.signal(signal.SIGUSR1, before)
        ledger.close()
    assert [item.step for item in read_ledger(tmp_path)] == [1, 2]


@pytest.mark.parametrize("directory", ["gs://bucket/run", "s3://bucket/run", "GS://b", "file:///r"])
def test_nothing_can_be_appended_in_a_store(directory: str) -> None:
    with pytest.raises(InvalidRequestError, match="a directory of a file system") as caught:
        Ledger(directory)
    assert (caught.value.field, caught.value.value) == ("directory", directory)
    assert "bucket" in caught.value.hint
    with pytest.raises(InvalidRequestError):
        read_ledger(directory)
    with pytest.raises(InvalidRequestError):
        Ledger(Path(directory))


def test_an_unopenable_ledger_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / LEDGER_NAME).mkdir()
    with pytest.raises(PreflightError) as caught:
        Ledger(tmp_path)
    assert caught.value.message == f"cannot write in {tmp_path}: Is a directory"
    assert caught.value.hint == "set directory= to another directory"
    with pytest.raises(FileNotFoundError):
        read_ledger(tmp_path / "nowhere")
