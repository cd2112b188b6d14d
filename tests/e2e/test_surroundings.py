"""Surroundings in which other tools failed their users: closed streams, blocked signals, umasks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.embedded import DEADLINE_S, KIND, embedded, nothing_left, shut_down
from harness.processes import REPOSITORY
from harness.programs import sps

CLI = (sys.executable, "-m", "shared_pathways_service.cli")
#: Blocks all signals and forgets how children end, as programs with threads of their own may do.
DEAF = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in (signal.SIGCHLD, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
#: Uses slices where the next files to be opened would be its standard streams.
WITHOUT_STREAMS = f"""
import os, sys
for number in (0, 1, 2):
    os.close(number)
from shared_pathways_service import isc_pathways
with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}):
    import jax.numpy as jnp
    # As a library written in C does.
    os.write(2, b"noise" * 100)
    with open(sys.argv[1], "w") as file:
        file.write(str(float(jnp.arange(4.0).sum())))
"""
SHOWN = """
import signal
print("blocked", *signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(signal.getsignal(signal.SIGINT))
"""


def shell(line: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of a shell, in which `"$@"` is a command."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *words],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_closed_streams(tmp_path: Path) -> None:
    program = (*CLI, "run", "--", "sh", "-c", "echo shown; echo seen >&2; exit 7")
    with embedded(1):
        # (Files that the command opens would have the numbers of its streams.)
        assert shell('"$@" <&- >&- 2>&-', *CLI, "status", "--json").returncode == 0
        done = shell('"$@" <&- >&-', *program)
        assert (done.returncode, done.stdout) == (7, "")
        assert "seen" in done.stderr
        computed = tmp_path / "computed"
        done = shell('"$@"', sys.executable, "-c", WITHOUT_STREAMS, str(computed))
        assert done.returncode == 0, done.stderr
        assert computed.read_text() == "6.0"
        assert nothing_left()


def test_a_full_disk_for_a_help_text() -> None:
    for words in (("--help",), ("--version",)):
        done = shell('"$@" >/dev/full', *CLI, *words)
        assert done.returncode == 1
        assert done.stderr == "error: [Errno 28] No space left on device\n"


@pytest.mark.real_starts
def test_signals_that_the_caller_blocks_or_ignores() -> None:
    deaf = (sys.executable, "-c", DEAF)
    submit = (
        *CLI[1:],
        "submit",
        "--name=hears",
        f"--slices={KIND}=1",
        "--",
        sys.executable,
        "-c",
        SHOWN,
    )
    try:
        # It starts the service, which inherits none of it; nor do jobs.
        done = shell('"$@"', *deaf, *submit)
        assert done.returncode == 0, done.stderr
        sps("wait", "hears")
        shown = sps("logs", "hears").stdout.splitlines()
        assert "blocked" in shown
        assert any("default_int_handler" in line for line in shown), shown
        # The end of the program ends the command.
        done = shell('"$@"', *deaf, *CLI[1:], "run", "--", "sh", "-c", "exit 7")
        assert done.returncode == 7, done.stderr
        assert nothing_left()
    finally:
        shut_down()


def test_the_umask_and_the_encoding_of_jobs(tmp_path: Path) -> None:
    with embedded(1):
        # (No default of a system.)
        line = 'umask 026; exec "$@"'
        done = shell(
            line, *CLI, "submit", f"--workdir={tmp_path}", "--name=made", "--", "touch", "f"
        )
        assert done.returncode == 0, done.stderr
        sps("wait", "made")
        assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640
        sps("submit", "--name=loss", "--", "echo", "loss → 0.1 ✓")
        sps("wait", "loss")
        done = shell('"$@"', *CLI, "logs", "loss", PYTHONIOENCODING="latin-1")
        assert done.returncode == 0, done.stderr
        assert r"loss \u2192 0.1 \u2713" in done.stdout


def test_a_directory_that_was_removed(tmp_path: Path) -> None:
    words = (sys.executable, "-P", *CLI[1:], "submit", "--", "true")
    line = f'mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; exec "$@"'
    done = shell(line, *words, PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 2
    assert "workdir='.' is not valid: expected a directory that exists" in done.stderr
