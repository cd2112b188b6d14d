"""Programs that ask on the terminal, in and out of pipelines."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.terminals.shells import CTRL_C, Shell, needs

#: Lines in which a program's place is `{}`: alone, at both ends of pipelines, with redirections.
PLACES = [
    "{}",
    "{} | cat",
    "{} 2>&1 | cat",
    "{} | tee output",
    "{} >output; cat output",
    "true | cat; {} | cat | cat",
]


def test_input_asks(any_shell: Shell, run: str) -> None:
    for place in PLACES:
        any_shell.begin(place.format(f"{run}ask"), "ask")
        any_shell.key("Ada\n")
        assert "got Ada\n" in any_shell.prompt(), place
        assert any_shell.status() == 0


def test_getpass_asks_the_terminal(any_shell: Shell, run: str) -> None:
    for place in ("{}", "{} | cat", "echo input | {} | cat", "{} </dev/null 2>/dev/null >output"):
        any_shell.begin(place.format(f"{run}secret"))
        any_shell.expect("secret? ")
        any_shell.key("xyzzy\n")
        shown = any_shell.prompt()
        if "output" in place:
            shown = any_shell.do("cat output")
        assert shown.strip() == "got xyzzy", place


def test_the_debugger_asks(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{run}debug 2>&1 | cat")
    any_shell.expect("(Pdb) ")
    any_shell.key("p number + 1\n")
    any_shell.expect("42")
    any_shell.expect("(Pdb) ")
    any_shell.key("c\n")
    assert "continued" in any_shell.prompt()


def test_input_comes_from_a_pipe(any_shell: Shell, run: str) -> None:
    assert any_shell.do(f"echo Ada | {run}ask") == "name? got Ada\n"
    assert any_shell.do(f"yes | {run}head -n 1") == "y\n"
    assert any_shell.status() == 0
    if first_status := any_shell.dialect.first_status:
        assert any_shell.do(f"{run}yes | head -n 1; echo {first_status}") == "y\n141\n"
    assert any_shell.do(f"echo Ada | xargs -n 1 {run}echo hello") == "hello Ada\n"
    assert "EOFError" in any_shell.do(f"{run}ask </dev/null")


def test_descriptors_are_inherited(any_shell: Shell, run: str) -> None:
    if substitution := any_shell.dialect.substitution:
        file = substitution.format("echo substituted")
        assert any_shell.do(f"{run}cat {file}") == "substituted\n"
    assert any_shell.do(f"echo three >three; {run}cat /dev/fd/3 3<three") == "three\n"
    # (fish has a function of that name.)
    listed = any_shell.do(f"{run}{shutil.which('ls')} /proc/self/fd").split()
    assert listed == ["0", "1", "2", "3"]  # (The last one is that of the listing.)


@needs("less")
def test_pagers(any_shell: Shell, run: str) -> None:
    Path(any_shell.directory, "text").write_text("".join(f"line {n}.\n" for n in range(1000)))
    for line in (f"{run}less text", f"cat text | {run}less", f"{run}cat text | less"):
        any_shell.begin(line)
        any_shell.expect("line 9.")
        any_shell.key("G")
        any_shell.expect("line 999.")
        any_shell.key("q")
        any_shell.prompt()
        assert any_shell.status() == 0


def test_an_interactive_shell_controls_its_own_jobs(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"PS1='inner: ' {run}bash --norc --noprofile --noediting -i")
    any_shell.expect("inner: ")
    any_shell.key("sleep 600\n")
    any_shell.wait_for_foreground("sleep")
    any_shell.key(CTRL_C)
    any_shell.expect("inner: ")
    any_shell.key("echo $?\n")
    assert any_shell.expect("inner: ").splitlines()[-1] == "130"
    # It stops the job that it is, and gets the terminal again.
    any_shell.key("suspend\n")
    assert any_shell.dialect.stopped in any_shell.prompt()
    any_shell.begin("fg")
    any_shell.expect("inner: ")
    any_shell.key("exit 3\n")
    any_shell.prompt()
    assert not any_shell.dialect.knows_after_fg or any_shell.status() == 3
