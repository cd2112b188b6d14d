"""Programs that ask on the terminal, in and out of pipelines."""

from __future__ import annotations

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


def test_getpass_asks_the_terminal(bash: Shell, run: str) -> None:
    for place in ("{}", "{} | cat", "echo input | {} | cat", "{} </dev/null 2>/dev/null >output"):
        bash.begin(place.format(f"{run}secret"))
        bash.expect("secret? ")
        bash.key("xyzzy\n")
        shown = bash.prompt()
        if "output" in place:
            shown = bash.do("cat output")
        assert shown.strip() == "got xyzzy", place


def test_the_debugger_asks(bash: Shell, run: str) -> None:
    bash.begin(f"{run}debug 2>&1 | cat")
    bash.expect("(Pdb) ")
    bash.key("p number + 1\n")
    bash.expect("42")
    bash.expect("(Pdb) ")
    bash.key("c\n")
    assert "continued" in bash.prompt()


def test_input_comes_from_a_pipe(bash: Shell, run: str) -> None:
    assert bash.do(f"echo Ada | {run}ask") == "name? got Ada\n"
    assert bash.do(f"yes | {run}head -n 1; echo $?") == "y\n0\n"
    assert bash.do(f"{run}yes | head -n 1; echo ${{PIPESTATUS[0]}}") == "y\n141\n"
    assert bash.do(f"echo Ada | xargs -n 1 {run}echo hello") == "hello Ada\n"
    assert "EOFError" in bash.do(f"{run}ask </dev/null")


def test_descriptors_are_inherited(bash: Shell, run: str) -> None:
    assert bash.do(f"{run}cat <(echo substituted)") == "substituted\n"
    assert bash.do(f"echo three >three; {run}cat /dev/fd/3 3<three") == "three\n"
    listed = bash.do(f"{run}ls /proc/self/fd").split()
    assert listed == ["0", "1", "2", "3"]  # (The last one is that of the listing.)


@needs("less")
def test_pagers(bash: Shell, run: str) -> None:
    Path(bash.directory, "text").write_text("".join(f"line {n}.\n" for n in range(1000)))
    for line in (f"{run}less text", f"cat text | {run}less", f"{run}cat text | less"):
        bash.begin(line)
        bash.expect("line 9.")
        bash.key("G")
        bash.expect("line 999.")
        bash.key("q")
        bash.prompt()
        assert bash.status() == 0


def test_an_interactive_shell_controls_its_own_jobs(bash: Shell, run: str) -> None:
    bash.begin(f"PS1='inner: ' {run}bash --norc --noprofile --noediting -i")
    bash.expect("inner: ")
    bash.key("sleep 600\n")
    bash.wait_for_foreground("sleep")
    bash.key(CTRL_C)
    bash.expect("inner: ")
    bash.key("echo $?\n")
    assert bash.expect("inner: ").strip() == "130"
    # It stops the job that it is, and gets the terminal again.
    bash.key("suspend\n")
    assert "Stopped" in bash.prompt()
    bash.begin("fg")
    bash.expect("inner: ")
    bash.key("exit 3\n")
    bash.prompt()
    assert bash.status() == 3
