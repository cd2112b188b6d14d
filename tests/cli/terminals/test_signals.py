"""Signals of a terminal, of shells and of others: each reaches the program, and only once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from harness.deadlines import wait_until
from tests.cli.terminals.shells import CTRL_BACKSLASH, CTRL_C, CTRL_Z, Shell, needs

pytestmark = pytest.mark.race


def command(any_shell: Shell, run: str, name: str) -> psutil.Process:
    """Returns the process that a shell knows: the program, or `sps run`."""
    return any_shell.program("under" if run else name)


def assert_last(any_shell: Shell, process: psutil.Process) -> None:
    """Asserts that no more signals come: one that is sent now is the next to be noted."""
    shown = any_shell.screen.shown
    before, marks = shown.count("got "), shown.count("got USR2\r")
    process.send_signal(signal.SIGUSR2)
    any_shell.screen.expect_times("got USR2\r", marks + 1)
    assert any_shell.screen.shown.count("got ") == before + 1, any_shell.screen.shown


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "sleep 600 | {} 2>&1 | cat"])
def test_the_terminals_signals_come_once(any_shell: Shell, run: str, pipeline: str) -> None:
    others = [name for name in ("sleep", "cat") if name in pipeline]
    any_shell.begin(pipeline.format(f"{run}notes INT QUIT WINCH USR2"), *others)
    any_shell.expect("ready")
    # (`cat` would end by these.)
    keys = [] if "2>&1" in pipeline else [(CTRL_C, "got INT\r"), (CTRL_BACKSLASH, "got QUIT\r")]
    for key, noted in keys:
        any_shell.key(key)
        any_shell.expect(noted)
    any_shell.screen.resize(20, 70)
    any_shell.expect("got WINCH")
    assert_last(any_shell, command(any_shell, run, "notes"))
    any_shell.program("notes").kill()
    if "sleep" in pipeline:
        any_shell.program("sleep").kill()
    any_shell.prompt()


def test_signals_to_the_command_alone(any_shell: Shell, run: str) -> None:
    """By the number that a shell knows, which is that of `sps run`."""
    names = ["INT", "QUIT", "HUP", "TERM", "USR1", "WINCH", "URG", "ALRM", "TSTP", "RTMIN", "RTMAX"]
    any_shell.do(f"{run}notes {' '.join(names)} USR2 &")
    any_shell.expect("ready")
    for name in names:
        # (Not every shell knows the names of all.)
        number = getattr(signal, f"SIG{name}")
        any_shell.do(f"kill -{number:d} {any_shell.dialect.last_pid}")
        any_shell.screen.expect_times(f"got {name}\r", 1)
        assert_last(any_shell, command(any_shell, run, "notes"))
    any_shell.program("notes").kill()
    any_shell.wait_until_empty()


def test_what_the_command_started_does_not_get_its_signals(any_shell: Shell, run: str) -> None:
    script = "trap 'echo trapped >&2; exit 6' TERM; notes TERM USR2 & wait"
    any_shell.do(f'{run}sh -c "{script}" &')
    any_shell.expect("ready")
    last = any_shell.dialect.last_pid
    assert "trapped" in any_shell.do(f"kill {last}; wait {last}")
    any_shell.program("notes").send_signal(signal.SIGUSR2)
    any_shell.screen.expect_times("got USR2\r", 1)
    assert "got TERM" not in any_shell.screen.shown
    any_shell.program("notes").kill()
    any_shell.wait_until_empty()


def test_signals_to_the_job_come_once(any_shell: Shell, run: str) -> None:
    any_shell.do(f"{run}notes TERM INT HUP USR1 USR2 &")
    any_shell.expect("ready")
    # (Not by the shell: where `kill` is a program, as in fish, that of procps 4.0.2 takes
    # `-USR1 -GROUP` for every process of the machine.)
    group, job = os.getpgid(command(any_shell, run, "notes").pid), any_shell.dialect.job
    for send, name in (
        (lambda: any_shell.do(f"kill {job}"), "TERM"),
        (lambda: any_shell.do(f"kill -INT {job}"), "INT"),
        (lambda: any_shell.do(f"kill -HUP {job}"), "HUP"),
        (lambda: os.killpg(group, signal.SIGUSR1), "USR1"),
    ):
        send()
        any_shell.screen.expect_times(f"got {name}\r", 1)
        assert_last(any_shell, command(any_shell, run, "notes"))
    any_shell.program("notes").kill()
    any_shell.wait_until_empty()


def test_a_stopped_command_gets_signals(any_shell: Shell, run: str) -> None:
    for name in ("TERM", "HUP", "INT"):
        any_shell.begin(f"{run}notes")
        any_shell.expect("ready")
        any_shell.key(CTRL_Z)
        any_shell.prompt()
        # (bash itself continues a job for two of them.)
        job, status = any_shell.dialect.job, any_shell.dialect.status
        kills = f"kill -{name} {job}; kill -CONT {job} 2>/dev/null"
        shown = any_shell.do(f"{kills}; wait {job}; echo {status}")
        if any_shell.dialect.knows_after_wait:
            assert shown.splitlines()[-1] == str(128 + signal.Signals[f"SIG{name}"])
        any_shell.wait_until_empty()
        any_shell.do("jobs")  # (Then dash knows, too, and numbers the next one as the first.)


def test_a_stopped_program_gets_signals_that_go_to_us(any_shell: Shell) -> None:
    """Where the program was stopped, and `sps run` continued: nothing else would continue it."""
    any_shell.do("under notes &")
    any_shell.expect("ready")
    program, under = any_shell.program("notes"), any_shell.program("under")
    # All of the group, the process included that sees its signals.
    os.killpg(os.getpgid(under.pid), signal.SIGSTOP)
    any_shell.wait_until_stopped("notes", "under")
    under.send_signal(signal.SIGTERM)
    under.send_signal(signal.SIGCONT)
    wait_until("the program's end", lambda: not program.is_running())
    any_shell.wait_until_empty()
    last, status = any_shell.dialect.last_pid, any_shell.dialect.status
    shown = any_shell.do(f"wait {last}; echo {status}")
    if any_shell.dialect.knows_after_wait:
        assert shown.splitlines()[-1] == "143"


def test_signals_come_where_nothing_sees_those_of_the_group(any_shell: Shell) -> None:
    any_shell.do("under notes TERM USR2 &")
    any_shell.expect("ready")
    under = any_shell.program("under")
    [witness] = [child for child in under.children() if "witness" in child.cmdline()[-1]]
    witness.kill()
    under.terminate()
    any_shell.screen.expect_times("got TERM", 1)
    assert_last(any_shell, under)
    any_shell.program("notes").kill()
    any_shell.wait_until_empty()


def test_programs_signal_their_group(any_shell: Shell, run: str) -> None:
    script = "trap 'echo trapped >&2; exit 6' TERM; notes & read line; kill 0; wait"
    any_shell.begin(f'{run}sh -c "{script}" | cat')
    any_shell.expect("ready")
    any_shell.key("\n")
    any_shell.prompt()
    assert any_shell.screen.shown.count("trapped\r\n") == 1
    any_shell.wait_until_empty()


def test_ends_by_signals_are_a_shells(any_shell: Shell, run: str) -> None:
    status = any_shell.dialect.status
    for name, words in any_shell.dialect.ended.items():
        shown = any_shell.do(f"{run}sh -c 'kill -{name} $$'; echo {status}")
        assert words in shown
        # (fish says the words last.)
        assert str(128 + signal.Signals[f"SIG{name}"]) in shown.splitlines()
    any_shell.do(f"{run}sh -c 'kill -INT $$'")
    assert any_shell.status() == 130
    for code in (0, 7, 143):
        assert any_shell.do(f"{run}sh -c 'exit {code}'; echo {status}") == f"{code}\n"
    any_shell.do(f"{run}missing 2>/dev/null")
    assert any_shell.status() == 127


def test_ctrl_c_ends_loops_and_scripts(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{any_shell.dialect.loop.format(f'{run}notes')}; echo after")
    any_shell.expect("ready")
    any_shell.key(CTRL_C)
    assert "ready" not in any_shell.prompt()
    any_shell.wait_until_empty()

    Path(any_shell.directory, "script").write_text(f"{run}notes\necho after\n{run}notes\n")
    for name in ("bash", "sh"):
        any_shell.begin(f"{name} script")
        any_shell.expect("ready")
        any_shell.key(CTRL_C)
        shown = any_shell.prompt()
        assert "after" not in shown
        assert any_shell.status() == 130
        any_shell.wait_until_empty()


def test_ctrl_c_lets_a_program_tidy_up(any_shell: Shell, run: str) -> None:
    keeps_on = "sh -c \"trap '' INT; exec cat\""
    for line, others in ((f"{run}tidies", []), (f"{run}tidies | {keeps_on}", ["cat"])):
        any_shell.begin(line, *others)
        any_shell.expect("ready")
        any_shell.key(CTRL_C)
        assert "tidied" in any_shell.prompt()
        status = any_shell.dialect.first_status
        if not status and not others:
            status = any_shell.dialect.status
        if status:
            assert any_shell.do(f"echo {status}") == "5\n"


def test_a_closed_terminal_ends_programs(any_shell: Shell, run: str) -> None:
    if any_shell.dialect.ends_background:
        any_shell.do(f"{run}notes | cat &")
        any_shell.expect("ready")
    any_shell.begin(f"{run}notes")
    any_shell.expect("ready")
    any_shell.screen.close()
    any_shell.wait_until_empty()


def test_a_closed_terminal_ends_stopped_programs(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{run}notes")
    any_shell.expect("ready")
    any_shell.key(CTRL_Z)
    any_shell.prompt()
    any_shell.screen.close()
    any_shell.wait_until_empty()


@needs("nohup")
def test_nohup_outlives_the_terminal(any_shell: Shell, run: str) -> None:
    any_shell.do(f"nohup {run}notes TERM >/dev/null 2>notes &")
    notes = any_shell.directory / "notes"
    wait_until("the program", lambda: notes.exists() and "ready" in notes.read_text())
    program = any_shell.program("notes")
    any_shell.screen.close()
    wait_until("the shell's end", lambda: any_shell.screen.process.poll() is not None)
    program.terminate()
    wait_until("its note", lambda: "got TERM" in notes.read_text())
    program.kill()
    any_shell.wait_until_empty()
