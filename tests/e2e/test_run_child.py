"""A command under `sps run`, without a service: its signals, its terminal, its end."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.deadlines import deadline, wait_until
from shared_pathways_service.cli.child import (
    FORWARDED,
    CommandError,
    Stopped,
    ignoring_signals,
    raise_on_signals,
    run_child,
)

pytestmark = pytest.mark.race

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = deadline(60.0)

#: Runs its arguments as `sps run` does.
WRAPPER = """
import os, sys
from shared_pathways_service.cli.child import run_child
sys.exit(run_child(sys.argv[1:], os.environ))
"""
#: The same as the leader of a terminal's session, as a shell would start it.
IN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n" + WRAPPER

#: Says which signals it gets, until it reads "end".
COMMAND = textwrap.dedent("""
    import os, select, signal, sys
    def got(number, frame):
        # Not by print: the next signal may come while it still works.
        os.write(1, f"got {signal.Signals(number).name}\\n".encode())
    for name in sys.argv[1:]:
        signal.signal(signal.Signals[name], got)
    print("ready", flush=True)
    # Woken by signals too: one that comes right before a read is only handled after it.
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 64)
        if 0 in ready:
            line = sys.stdin.readline()
            print("read", line.strip(), flush=True)
            if line.strip() in ("end", ""):
                sys.exit(3)
""")


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_exit_code_is_the_commands(script: str, code: int) -> None:
    assert run_child(["sh", "-c", script], os.environ) == code


def test_the_environment_is_what_was_given() -> None:
    script = 'test "$ONLY" = this && test -z "$HOME"'
    assert run_child(["sh", "-c", script], {"ONLY": "this", "PATH": os.environ["PATH"]}) == 0


def test_a_command_that_cannot_be_run_has_a_shells_exit_codes(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch(mode=0o644)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00\x01")
    garbage.chmod(0o755)
    for name, code in [(tmp_path / "missing", 127), (plain, 126), (garbage, 126), (tmp_path, 126)]:
        with pytest.raises(CommandError) as info:
            run_child([str(name)], os.environ)
        assert info.value.exit_code == code
        assert str(name) in str(info.value)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in FORWARDED]
    run_child(["true"], os.environ)
    with pytest.raises(CommandError):
        run_child(["/nowhere"], os.environ)
    with raise_on_signals(), ignoring_signals():
        pass
    assert [signal.getsignal(number) for number in FORWARDED] == before


def test_signals_before_and_after_the_command() -> None:
    with pytest.raises(Stopped) as info, raise_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert info.value.number == signal.SIGTERM
    with raise_on_signals(), ignoring_signals():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_a_command_that_may_not_be_signalled_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def refuse(group: int, number: int) -> None:
        asked.append(number)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    script = f"kill -TERM {os.getpid()}; exit 4"
    assert run_child(["sh", "-c", script], os.environ) == 4
    assert asked == [signal.SIGTERM]


def test_every_signal_is_passed_on_once() -> None:
    names = [signal.Signals(number).name for number in FORWARDED]
    command = [sys.executable, "-c", WRAPPER, sys.executable, "-c", COMMAND, *names]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        for name in names:
            process.send_signal(signal.Signals[name])
            assert process.stdout.readline() == f"got {name}\n"
        out, _ = process.communicate("end\n", timeout=DEADLINE_S)
    assert out == "read end\n"
    assert process.returncode == 3


def test_a_signal_reaches_what_the_command_started_too() -> None:
    script = f"{sys.executable} -c 'import time; print(1, flush=True); time.sleep(600)'; exit 9"
    command = [sys.executable, "-c", WRAPPER, "sh", "-c", script]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "1\n"
        process.terminate()
        # The end of the stream: nobody holds it any more, the grandchild neither.
        assert process.communicate(timeout=DEADLINE_S)[0] == ""
    assert process.returncode == 143


def test_ignored_signals_are_ignored_by_the_command() -> None:
    script = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    command = ["nohup", sys.executable, "-c", WRAPPER, sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=REPOSITORY, check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1


class Terminal:
    """A terminal with `IN_TERMINAL` in its foreground."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.shown.count(text) < times:
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {text!r}: {self.shown!r}"
            if select.select([self._master], [], [], left)[0]:
                self.shown += os.read(self._master, 4096).decode()

    def expect_status(self, status: str) -> None:
        wait_until(
            f"{status}: {self.shown!r}", lambda: psutil.Process(self.process.pid).status() == status
        )

    def foreground(self) -> int:
        return os.tcgetpgrp(self._master)


@contextlib.contextmanager
def terminal(*command: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *command],
        cwd=REPOSITORY,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.kill()
        process.wait()
        os.close(master)


def test_the_terminal_is_the_commands() -> None:
    with terminal(sys.executable, "-c", COMMAND, "SIGINT", "SIGQUIT") as screen:
        screen.expect("ready")
        assert screen.foreground() != screen.process.pid
        screen.type("\x03")
        screen.expect("got SIGINT")
        screen.type("one\n")
        screen.expect("read one")
        screen.type("\x1c")
        screen.expect("got SIGQUIT")

        screen.type("\x1a")  # Ctrl-Z: both stop, and whoever started us has the terminal
        screen.expect_status(psutil.STATUS_STOPPED)
        assert screen.foreground() == screen.process.pid
        screen.process.send_signal(signal.SIGCONT)
        screen.type("two\n")
        screen.expect("read two")

        screen.process.send_signal(signal.SIGINT)  # not typed, but sent to us: passed on
        screen.expect("got SIGINT", times=2)
        screen.type("end\n")
        screen.expect("read end")
        assert screen.process.wait(DEADLINE_S) == 3
        assert screen.shown.count("got SIGINT") == 2
        assert screen.shown.count("got SIGQUIT") == 1


def test_a_typed_interrupt_ends_the_command_and_not_us_before_it() -> None:
    with terminal("sh", "-c", "trap 'echo cleaning; exit 5' INT; echo ready; read x") as screen:
        screen.expect("ready")
        screen.type("\x03")
        screen.expect("cleaning")
        assert screen.process.wait(DEADLINE_S) == 5
