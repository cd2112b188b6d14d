"""Surroundings in which other tools failed their users: closed streams, blocked signals, umasks."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.embedded import DEADLINE_S, KIND, embedded, nothing_left, shut_down
from harness.processes import REPOSITORY, ServerProcess
from harness.programs import sps
from shared_pathways_service.agent.launch import launch_agent
from tests.agent.fake_agent import COMMAND as AGENT

CLI = (sys.executable, "-m", "shared_pathways_service.cli")
#: Starts a command with all signals blocked and with children whose ends the system forgets, as
#: programs with threads of their own may do.
DEAF = (
    sys.executable,
    "-c",
    """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in (signal.SIGCHLD, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
""",
)
#: Uses slices where the next files to be opened would be its standard streams, and writes the
#: result or the failure to a file.
WITHOUT_STREAMS = f"""
import os, sys, traceback
for number in (0, 1, 2):
    os.close(number)
def main():
    from shared_pathways_service import isc_pathways
    with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}):
        import jax.numpy as jnp
        # As a library written in C does.
        os.write(2, b"noise" * 100)
        return str(float(jnp.arange(4.0).sum()))
try:
    result = main()
except BaseException:
    result = traceback.format_exc()
with open(sys.argv[1], "w") as file:
    file.write(result)
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
        assert done.returncode == 7
        assert "seen" in done.stderr
        computed = tmp_path / "computed"
        assert shell('"$@"', sys.executable, "-c", WITHOUT_STREAMS, str(computed)).returncode == 0
        assert computed.read_text() == "6.0"
        assert nothing_left()


@pytest.mark.parametrize("word", ["--help", "--version", "list"])
def test_a_full_disk_for_the_output(word: str) -> None:
    done = shell('"$@" >/dev/full', *CLI, word)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.real_starts
def test_signals_that_the_caller_blocks_or_ignores() -> None:
    submit = (
        *CLI,
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
        done = shell('"$@"', *DEAF, *submit)
        assert done.returncode == 0, done.stderr
        sps("wait", "hears")
        shown = sps("logs", "hears").stdout.splitlines()
        assert "blocked" in shown
        assert any("default_int_handler" in line for line in shown), shown
        # The end of the program ends the command.
        done = shell('"$@"', *DEAF, *CLI, "run", "--", "sh", "-c", "exit 7")
        assert done.returncode == 7, done.stderr
        assert nothing_left()
    finally:
        shut_down()


@pytest.mark.real_starts
def test_a_service_that_is_started_with_signals_blocked_ends_on_sigterm() -> None:
    flags = [f"--slices={KIND}=1", "--spares=0"]
    with ServerProcess("shared_pathways_service.servers.supervisor", flags, prefix=DEAF) as service:
        assert service.ready is not None, "\n".join(service.lines)
        assert service.stop() == 0


@pytest.mark.real_starts
def test_sps_serve_that_is_started_with_signals_blocked_ends_on_sigterm() -> None:
    command = (*DEAF, *CLI, "serve", f"--slices={KIND}=1", "--spares=0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout is not None
            assert any("slice.ready" in line for line in process.stdout)
            process.terminate()
            assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.real_starts
def test_an_agent_that_is_started_with_signals_blocked_ends_on_sigterm(
    own_directories: Path,
) -> None:
    with contextlib.ExitStack() as undo:
        agent, channel = launch_agent(own_directories / "agents" / "a.log", (*DEAF, *AGENT))
        undo.callback(agent.wait, DEADLINE_S)
        undo.callback(agent.kill)
        undo.enter_context(channel)
        channel.settimeout(DEADLINE_S)
        # Its first message: it is set up.
        assert channel.recv(1)
        agent.terminate()
        assert agent.wait(DEADLINE_S) == -signal.SIGTERM


@pytest.mark.real_starts
def test_a_job_has_the_umask_of_its_submitter_and_the_limits_of_its_service(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    program = "(nice; ulimit -c; ulimit -H -c) >made"
    with embedded(1) as service:
        # (Only root can lower it.)
        nice = max(7, os.getpriority(os.PRIO_PROCESS, service.pid))
        os.setpriority(os.PRIO_PROCESS, service.pid, nice)
        resource.prlimit(service.pid, resource.RLIMIT_CORE, (0, 1 << 20))
        done = shell(
            # (No default of a system.)
            'umask 026; exec nice -n 3 "$@"',
            *(*CLI, "submit", f"--workdir={tmp_path}", "--name=made", "--", "sh", "-c", program),
        )
        assert done.returncode == 0, done.stderr
        sps("wait", "made")
    assert stat.S_IMODE(made.stat().st_mode) == 0o640
    *shown, hard = map(int, made.read_text().split())
    assert shown == [nice, 0]
    # (In blocks of 512 or 1024 bytes.)
    assert hard in (1 << 10, 1 << 11)


def test_a_limited_address_space() -> None:
    computes = "import jax; print(jax.default_backend(), jax.numpy.ones(3).sum())"

    def run(kib: int) -> subprocess.CompletedProcess[str]:
        limited = ("sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh")
        words = ("run", f"--slices={KIND}=1", "--", *limited, sys.executable, "-c", computes)
        return shell('exec "$@"', *CLI, *words)

    with embedded(1):
        done = run(8 << 20)
        assert (done.returncode, done.stdout) == (0, "proxy 3.0\n"), done.stderr
        # Too little for jaxlib's library, which the program's own error says; the slice is free.
        done = run(200 << 10)
        assert done.returncode == 1, done.stderr
        assert "failed to map segment" in done.stderr
        assert "did not use its slices" in done.stderr
        assert nothing_left()


def test_output_of_a_job_that_an_encoding_cannot_represent() -> None:
    with embedded(1):
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
    assert done.stderr == (
        "error: the current directory was removed hint: change to another, or pass the working "
        "directory of the job (--workdir)\n"
    )


def test_a_home_that_is_not_utf8(tmp_path: Path) -> None:
    line = """
    unset SPS_CONFIG SPS_STATE_DIR SPS_CACHE_DIR XDG_CONFIG_HOME XDG_STATE_HOME XDG_CACHE_HOME
    exec "$@"
    """
    home = tmp_path / os.fsdecode(b"j\xfcrgen")
    home.mkdir()
    done = shell(line, *CLI, "list", HOME=str(home), TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert rf"{tmp_path}/j\udcfcrgen/.local/state" in done.stderr
