"""A command under `sps run`, without a service: its signals and its end.

At terminals: tests/cli/terminals.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import machines
from harness.deadlines import deadline
from harness.terminals import screen
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
from shared_pathways_service.cli.child import Stopped, end_by_signal, run_child
try:
    code = run_child(sys.argv[1:], os.environ)
except Stopped as stopped:
    code = -stopped.number
sys.exit(code if code >= 0 else end_by_signal(-code))
"""

#: Says which signals it gets, until it reads "end".
COMMAND = textwrap.dedent("""
    import os, select, signal, sys
    def got(number, frame):
        # Not by print: the next signal may come while it still works.
        os.write(1, f"got {number}\\n".encode())
    for number in sys.argv[1:]:
        signal.signal(int(number), got)
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


def start(command: Sequence[str], before: str = "", **options: Any) -> subprocess.Popen[str]:
    """Starts a command that no terminal controls, wherever the test runs.

    Args:
      command: The command.
      before: What the process does that runs it.
      options: Of the process.
    """
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\n{WRAPPER}", *command],
        cwd=REPOSITORY,
        text=True,
        start_new_session=True,
        **options,
    )


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
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


def test_a_command_that_may_not_be_signalled_is_waited_for() -> None:
    refusing = """
import os
def refuse(group, number):
    print(number, flush=True)
    raise PermissionError
os.killpg = refuse
"""
    command = ["sh", "-c", "kill -TERM $PPID; exit 4"]
    with start(command, refusing, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 4
    assert out.split() == [str(int(signal.SIGTERM))]


def test_every_signal_is_passed_on_once() -> None:
    command = [sys.executable, "-c", COMMAND, *map(str, map(int, FORWARDED))]
    with start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        for number in FORWARDED:
            process.send_signal(number)
            # A stopped command would not notice some of them.
            continued = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
            expected = [number, *([signal.SIGCONT] if continued else [])]
            got = sorted(process.stdout.readline() for _ in expected)
            assert got == sorted(f"got {int(number)}\n" for number in expected)
        out, _ = process.communicate("end\n", timeout=DEADLINE_S)
    assert out == "read end\n"
    assert process.returncode == 3


def test_all_that_can_be_are_passed_on() -> None:
    names = "HUP INT QUIT ABRT USR1 USR2 ALRM TERM CONT TSTP URG XCPU VTALRM PROF WINCH IO"
    assert {signal.Signals[f"SIG{name}"] for name in names.split()} <= set(FORWARDED)
    assert {signal.SIGRTMIN, signal.SIGRTMAX} <= set(FORWARDED)


def test_a_signal_reaches_what_the_command_started_too() -> None:
    script = f"{sys.executable} -c 'import time; print(1, flush=True); time.sleep(600)'; exit 9"
    with start(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == "1\n"
        process.terminate()
        # The end of the stream: nobody holds it any more, the grandchild neither.
        assert process.communicate(timeout=DEADLINE_S)[0] == ""
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("event", "what"), [("open", "/dev/tty"), ("subprocess.Popen", "sh")], ids=["before", "at"]
)
def test_a_signal_at_the_start_ends_the_command(event: str, what: str) -> None:
    signalling = f"""
import signal, sys
def signal_once(event, arguments, done=[]):
    if event == {event!r} and arguments[0] == {what!r} and not done:
        done.append(event)
        signal.raise_signal(signal.SIGTERM)
sys.addaudithook(signal_once)
"""
    with start(["sh", "-c", "sleep 600"], signalling) as process:
        assert process.wait(DEADLINE_S) == 143


def test_children_are_waited_for_where_their_ends_were_ignored() -> None:
    ignoring = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    with start(["sh", "-c", "exit 7"], ignoring) as process:
        assert process.wait(DEADLINE_S) == 7


#: Makes the process see the end of its command's start late, as on a busy machine.
SLOW_STARTS = """
import subprocess, time
class Popen(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        time.sleep(1.0)
subprocess.Popen = Popen
"""


@pytest.mark.skipif(not machines.is_possible(), reason="this user may not make namespaces")
@pytest.mark.parametrize("before", ["", SLOW_STARTS], ids=["in time", "late"])
def test_the_first_process_of_a_container_reaps_orphans(before: str) -> None:
    """As in images whose entry point is `sps run`: nobody else reaps what the command left."""
    # (An orphan ends after its parent. `wait` is for the end of another one, which comes later.)
    script = "(sleep 0.2 & exec true); sleep 2 & wait; ps -eo stat=,args= | grep -c '^Z'; exit 7"
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    wrapper = [sys.executable, "-c", f"{before}\n{WRAPPER}"]
    done = subprocess.run(
        ["unshare", *own_user, *spaces, *wrapper, "sh", "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        start_new_session=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("0\n", 7), done.stderr


def test_descriptors_are_inherited_but_not_our_own() -> None:
    ours, theirs = os.pipe()
    script = f"echo inherited >/dev/fd/{theirs}; ls /proc/self/fd"
    command = ["sh", "-c", script]
    with start(command, stdout=subprocess.PIPE, pass_fds=[theirs]) as process:
        os.close(theirs)
        out, _ = process.communicate(timeout=DEADLINE_S)
    with os.fdopen(ours) as inherited:
        assert inherited.read() == "inherited\n"
    # (`ls` has one more.)
    assert len(out.split()) == len({0, 1, 2, theirs}) + 1


def test_ignored_signals_are_ignored_by_the_command() -> None:
    script = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    command = ["nohup", sys.executable, "-c", WRAPPER, sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=REPOSITORY, check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1


def test_a_typed_interrupt_ends_the_command_and_not_us_before_it() -> None:
    command = ["sh", "-c", "trap 'echo cleaning; exit 5' INT; echo ready; read x"]
    with screen([sys.executable, "-c", WRAPPER, *command], cwd=REPOSITORY) as window:
        window.expect("ready")
        window.type("\x03")
        window.expect("cleaning")
        assert window.process.wait(DEADLINE_S) == 5


def at_terminal(command: Sequence[str], before: str) -> Sequence[str]:
    """Returns a shell's command that runs a command as one of its jobs, as `sps run` does."""
    words = [sys.executable, "-c", f"{before}\n{WRAPPER}", *command]
    return ["bash", "-c", f"set -m; {shlex.join(words)}; exit $?"]


def test_a_group_that_is_signalled_before_the_command_is_there() -> None:
    """The command does not get the signal, which reaches the group: it is passed on."""
    signalling = """
import os, signal, sys
def signal_once(event, arguments, done=[]):
    if event == "subprocess.Popen" and arguments[0] == "sleep" and not done:
        done.append(event)
        os.killpg(os.getpgrp(), signal.SIGTERM)
sys.addaudithook(signal_once)
"""
    with screen(at_terminal(["sleep", "600"], signalling), cwd=REPOSITORY) as window:
        assert window.process.wait(DEADLINE_S) == 143


def test_a_group_that_is_signalled_once_the_command_is_there() -> None:
    """The command gets the signal, and not again from this process."""
    signalling = """
import os, signal
from shared_pathways_service.cli.command_signals import SignalsInOurGroup
begin = SignalsInOurGroup.begin
def begin_signalled(self, early):
    assert noted.readline() == "ready\\n"
    os.killpg(os.getpgrp(), signal.SIGTERM)
    assert noted.readline() == "got 15\\n"
    begin(self, early)
    os.kill(self._command, signal.SIGWINCH)
    print("then", noted.readline())
SignalsInOurGroup.begin = begin_signalled
ours, theirs = os.pipe()
noted = os.fdopen(ours)
os.dup2(theirs, 9)
"""
    script = """
import os, signal, time
for number in (15, 28):
    signal.signal(number, lambda number, _: os.write(9, f"got {number}\\n".encode()))
os.write(9, b"ready\\n")
while True:
    time.sleep(1)
"""
    command = [sys.executable, "-S", "-c", script]
    with screen(at_terminal(command, signalling), cwd=REPOSITORY) as window:
        window.expect("then got 28")


@pytest.mark.parametrize("name", ["STOP", "TSTP"])
def test_a_stop_that_was_ended_is_not_repeated(name: str) -> None:
    continuing = """
import os, signal
from shared_pathways_service.cli.command_signals import SignalsInOurGroup
stop_with = SignalsInOurGroup.stop_with
def stop_too_late(self, number):
    os.kill(self._command, signal.SIGCONT)
    stop_with(self, number)
SignalsInOurGroup.stop_with = stop_too_late
"""
    command = ["sh", "-c", f"kill -{name} $$; exit 3"]
    with screen(at_terminal(command, continuing), cwd=REPOSITORY) as window:
        assert window.process.wait(DEADLINE_S) == 3
