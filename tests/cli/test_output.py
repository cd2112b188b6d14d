"""What commands say, and what becomes of it where nobody can hear it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from harness.deadlines import deadline
from harness.terminals import terminal
from shared_pathways_service.cli.display.executor_display import (
    executor_place,
    shown_cpu,
    shown_cpu_time,
    shown_memory,
)
from shared_pathways_service.cli.display.output import print_note, print_table
from shared_pathways_service.cli.errors import print_failure, reporting_errors
from shared_pathways_service.errors import CapacityError, ProxyFailed
from shared_pathways_service.operations.service_readers.service_occupancy import occupancy_of
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.terminal import LastingStream

REPOSITORY = Path(__file__).parents[2]


def test_without_standard_error_a_note_is_dropped(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", None)
        print_note("nobody hears it")
    print_note("somebody does")
    assert capfd.readouterr() == ("", "sps: somebody does\n")


def test_the_end_of_a_failed_proxys_log_follows_the_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    print_failure(ProxyFailed("the proxy a ended", log_tail=["E cannot listen"], hint="retry"))
    assert capfd.readouterr().err.splitlines() == [
        "error: the proxy a ended hint: retry",
        "The proxy's log ends with:",
        "  E cannot listen",
    ]


def test_text_for_a_stream_of_an_unknown_encoding_is_dropped() -> None:
    class Odd(io.StringIO):
        encoding = "none-such"

        def write(self, text: str, /) -> int:
            raise UnicodeEncodeError("none-such", text, 0, 1, "it cannot represent this")

    assert LastingStream(Odd()).write("loss \u2192 0.1") == len("loss \u2192 0.1")


@pytest.mark.parametrize("is_there", [True, False], ids=["closed", "none"])
@pytest.mark.parametrize(
    ("error", "code"), [(CapacityError("all slices are taken"), 4), (OSError("disk full"), 1)]
)
def test_a_closed_output_does_not_change_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, *, is_there: bool
) -> None:
    def fail() -> None:
        raise error

    with terminal() as (stream, close), monkeypatch.context() as patched:
        close()
        patched.setattr(sys, "stderr", stream if is_there else None)
        with pytest.raises(typer.Exit) as ended:
            reporting_errors(fail)()
    assert ended.value.exit_code == code


@pytest.mark.parametrize(
    "words", [["--help"], ["render", "user-verification"], ["list", "--json"]], ids=" ".join
)
def test_a_reader_that_has_closed_our_output_ends_it_in_silence(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=deadline(60.0),
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_text_that_a_stream_cannot_represent_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", io.TextIOWrapper(written, encoding="ascii"))
        print_note("loss → 0.1")
        assert written.getvalue() == b"sps: loss \\u2192 0.1\n"


def test_a_table_is_not_cut_off_where_some_ci_asks_for_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "20")):
        monkeypatch.setenv(name, value)
    reason = "no slice is free " * 12
    print_table(["SLICE", "REASON"], [["slice-0", reason]])
    assert reason.strip() in capsys.readouterr().out


def test_so_does_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shared_pathways_service.cli", "report", str(tmp_path / "no")]
    words = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    assert (
        subprocess.run(words, cwd=REPOSITORY, timeout=deadline(60.0), check=False).returncode == 3
    )


def _shown_executor(usage: pb.ExecutorUsage | None) -> tuple[str, ...]:
    status = pb.ExecutorStatus(generation=1, state="serving", usage=usage)
    worker = pb.WorkerStatus(host_index=1, executor=status)
    manager = pb.GetStatusResponse(slices=[pb.SliceStatus(id="slice-0", workers=[worker])])
    [executor] = occupancy_of(manager)["executors"]
    return (
        executor_place(executor),
        shown_memory(executor),
        shown_cpu(executor),
        shown_cpu_time(executor),
    )


@pytest.mark.parametrize(
    ("usage", "shown"),
    [
        (None, ("-", "-", "-")),  # an older worker, or before the first measurement
        (
            pb.ExecutorUsage(resident_bytes=3 << 29, cpu_seconds=90.25, cpu_percent=150),
            ("1.5 GiB", "150%", "90.2 s"),
        ),
        (
            pb.ExecutorUsage(resident_bytes=5 << 20, memory_limit_bytes=8 << 30),
            ("5.0 MiB of 8.0 GiB", "0%", "0 s"),
        ),
    ],
)
def test_an_executor_is_shown_with_its_memory_and_processor_time(
    usage: pb.ExecutorUsage | None, shown: tuple[str, ...]
) -> None:
    assert _shown_executor(usage) == ("slice-0, host 1", *shown)
