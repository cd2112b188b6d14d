"""Programs below other programs that run commands, in other sessions, and without a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from harness.deadlines import deadline, wait_until
from harness.processes import is_alive
from harness.terminals import screen
from tests.cli.terminals.shells import CTRL_C, CTRL_Z, Shell, needs

pytestmark = pytest.mark.race

DEADLINE_S = deadline(60.0)


@needs("script")
def test_below_script(any_shell: Shell, run: str) -> None:
    any_shell.begin(f'script -q -e -c "{run}ask" /dev/null')
    any_shell.expect("name? ")
    any_shell.key("Ada\n")
    assert "got Ada" in any_shell.prompt()
    # Nothing could continue a program that is stopped there.
    any_shell.begin(f'script -q -e -c "exec {run}notes" /dev/null')
    any_shell.expect("ready")
    any_shell.key(CTRL_Z)
    any_shell.key(CTRL_C)
    any_shell.prompt()
    assert any_shell.status() == 130


@needs("setsid")
def test_below_setsid(any_shell: Shell, run: str) -> None:
    assert any_shell.do(f"echo Ada | setsid --wait {run}ask") == "name? got Ada\n"
    # In a new session Ctrl-C does not reach it.
    any_shell.begin(f"setsid --wait {run}notes INT USR2")
    any_shell.expect("ready")
    [outside] = any_shell.program("setsid").children()
    any_shell.key(CTRL_C)
    any_shell.prompt()
    outside.send_signal(signal.SIGUSR2)
    any_shell.expect("got USR2")
    assert "got INT" not in any_shell.screen.shown
    inside = outside.children(recursive=True)
    outside.terminate()
    wait_until("the end", lambda: not any(map(is_alive, [outside, *inside])))


@needs("timeout")
def test_below_timeout(any_shell: Shell, run: str) -> None:
    assert any_shell.do(f"timeout 60 {run}sh -c 'exit 3'") == ""
    assert any_shell.status() == 3
    for options in ("", "--foreground", "--signal=INT", "--signal=KILL"):
        any_shell.begin(f"timeout {options} 600 {run}notes")
        any_shell.expect("ready")
        # (That is how it notices the end of its time.)
        any_shell.program("timeout").send_signal(signal.SIGALRM)
        any_shell.prompt()
        assert any_shell.status() == (137 if "KILL" in options else 124)
        any_shell.wait_until_empty()
    any_shell.begin(f"timeout --foreground 60 {run}ask | cat", "ask")
    any_shell.key("Ada\n")
    assert "got Ada" in any_shell.prompt()


@needs("xargs")
def test_below_xargs(any_shell: Shell, run: str) -> None:
    assert "got Ada" in any_shell.do(f"echo x | xargs sh -c 'echo Ada | {run}ask'")
    any_shell.begin(f"echo USR2 | xargs {run}notes")
    any_shell.expect("ready")
    any_shell.key(CTRL_C)
    any_shell.prompt()
    any_shell.wait_until_empty()


@pytest.fixture
def before(programs: Path, run: str) -> Sequence[str]:
    """What stands before a command that no shell starts."""
    return [str(programs / "under")] if run else []


def path_with(programs: Path) -> Mapping[str, str]:
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def start(
    programs: Path, words: Sequence[str], stdin: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Starts a program that no terminal controls: as in CI, by cron or by ssh."""
    return subprocess.Popen(
        words,
        env=path_with(programs),
        start_new_session=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def noting(programs: Path, words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Starts a program that notes signals, and waits until it does."""
    with start(programs, words) as process:
        started: list[psutil.Process] = []
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "ready\n"
            started = psutil.Process(process.pid).children()
            yield process
        finally:
            process.kill()
            for left in started:
                with contextlib.suppress(psutil.Error):
                    left.kill()


def test_input_without_a_terminal(programs: Path, before: Sequence[str]) -> None:
    with start(programs, [*before, "ask"]) as process:
        out, _ = process.communicate("Ada\n", timeout=DEADLINE_S)
    assert out == "name? got Ada\n"
    for name in ("ask", "secret"):
        with start(programs, [*before, name], stdin=subprocess.DEVNULL) as process:
            _, err = process.communicate(timeout=DEADLINE_S)
        assert "EOFError" in err
        assert process.returncode == 1


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGALRM"])
def test_ends_without_a_terminal(programs: Path, before: Sequence[str], name: str) -> None:
    with noting(programs, [*before, "notes"]) as process:
        process.send_signal(signal.Signals[name])
        process.wait(DEADLINE_S)
    assert _as_a_shell(process.returncode) == 128 + signal.Signals[name]


def _as_a_shell(code: int) -> int:
    return code if code >= 0 else 128 - code


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_stopped_program_ends_by_signals_to_us(programs: Path, name: str) -> None:
    with noting(programs, [str(programs / "under"), "notes"]) as process:
        [program] = psutil.Process(process.pid).children()
        program.suspend()
        wait_until("its stop", lambda: program.status() == psutil.STATUS_STOPPED)
        process.send_signal(signal.Signals[name])
        assert process.wait(DEADLINE_S) == 128 + signal.Signals[name]


def test_stops_are_passed_on_without_a_terminal(programs: Path) -> None:
    with noting(programs, [str(programs / "under"), "notes"]) as process:
        [program] = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTSTP)
        wait_until("its stop", lambda: program.status() == psutil.STATUS_STOPPED)
        process.send_signal(signal.SIGCONT)
        wait_until("its way on", lambda: program.status() != psutil.STATUS_STOPPED)
        process.terminate()
        assert process.wait(DEADLINE_S) == 143


def test_the_leader_of_a_session(programs: Path, before: Sequence[str]) -> None:
    """As a terminal window that runs one command: it has no shell."""
    environment = path_with(programs)
    with screen([*before, "notes", "TSTP"], environment=environment) as window:
        window.expect("ready")
        window.type(CTRL_Z)
        window.expect("got TSTP")
        window.type(CTRL_C)
        assert _as_a_shell(window.process.wait(DEADLINE_S)) == 130
    with screen([*before, "notes"], environment=environment) as window:
        window.expect("ready")
        window.close()
        assert _as_a_shell(window.process.wait(DEADLINE_S)) == 129
        window.wait_until_empty()
