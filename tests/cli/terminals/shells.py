"""Interactive shells in terminals, and the programs that tests run in them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

import shared_pathways_service
from harness.deadlines import wait_until
from harness.layers.needed_programs import needed_program
from harness.processes import REPOSITORY
from harness.terminals import Screen, screen

__all__ = [
    "CTRL_BACKSLASH",
    "CTRL_C",
    "CTRL_Z",
    "DIALECTS",
    "Shell",
    "exceptions_of",
    "make_programs",
    "needed_by",
    "needs",
    "require",
    "shell",
    "without",
]

CTRL_C, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x1a", "\x1c"
_PROMPT = "@> "
#: What fish shows when it has read a line, which it echoes itself, and before it runs it.
_BEGUN = "<@"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\(B|[=>]|\][^\x07]*\x07)")
#: What fish shows, without escapes, in case that the last line has no end.
_FISH_LINE_END = re.compile(r"⏎ *\r⏎ \r")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """What differs between shells.

    Attributes:
      command: Starts it for a person, without the person's settings.
      stopped: What it says of a job that is stopped.
      ended: What it says of a job that a signal ended, by the signal's name.
      status: Stands for the exit code of the last command in a line.
      last_pid: Stands for the process that was started last in the background.
      first_status: Stands for the exit code of the first command of the last pipeline; empty: none.
      substitution: A file with a command's output, whose place is `{}`; empty: there is none.
      loop: Runs a command, whose place is `{}`, several times.
      job: Stands for the only job.
      knows_after_fg: Whether it knows the exit code of a job after `fg`.
      knows_after_wait: Whether it knows that of a job that was stopped, after `wait`.
      ends_background: Whether it ends its background when its terminal is closed.
      echoes: Whether it shows what is typed itself, and then `_BEGUN`.
    """

    command: Sequence[str]
    stopped: str
    ended: Mapping[str, str]
    status: str = "$?"
    last_pid: str = "$!"
    first_status: str = ""
    substitution: str = ""
    loop: str = "for i in 1 2 3; do {}; done"
    job: str = "%1"
    knows_after_fg: bool = True
    knows_after_wait: bool = True
    ends_background: bool = True
    echoes: bool = False


# (Its prompt may be drawn several times; its events come once.)
_FISH_SETTINGS = f"""
set -g fish_greeting
function fish_prompt; end
function fish_title; end
function show_begin --on-event fish_preexec; printf '{_BEGUN}'; end
function show_prompt --on-event fish_prompt; printf '{_PROMPT}'; end
"""
_AS_BASH = {"KILL": "Killed\n", "SEGV": "Segmentation fault", "TERM": "Terminated\n"}
DIALECTS = {
    "bash": Dialect(
        command=["bash", "--norc", "--noprofile", "--noediting", "-i"],
        stopped="Stopped",
        ended=_AS_BASH,
        first_status="${PIPESTATUS[0]}",
        substitution="<({})",
    ),
    "zsh": Dialect(
        # (Without its line editor and what it writes beside the prompt.)
        command=[
            "zsh",
            "-f",
            "-i",
            *[f"--no-{o}" for o in ("zle", "promptsp", "promptcr", "banghist")],
        ],
        stopped="suspended",
        ended={"KILL": "killed", "SEGV": "segmentation fault", "TERM": "terminated"},
        first_status="$pipestatus[1]",
        substitution="<({})",
        knows_after_wait=False,
    ),
    "fish": Dialect(
        command=["fish", "--no-config", "-i", "-C", _FISH_SETTINGS],
        stopped="stopped",
        ended={name: f"SIG{name}" for name in _AS_BASH},
        status="$status",
        last_pid="$last_pid",
        first_status="$pipestatus[1]",
        substitution="({} | psub)",
        loop="for i in 1 2 3; {}; end",
        job="(jobs --last --pid)",
        knows_after_fg=False,
        knows_after_wait=False,
        echoes=True,
    ),
    "dash": Dialect(
        command=["dash", "-i"],
        stopped="Stopped",
        ended=_AS_BASH,
        knows_after_wait=False,
        ends_background=False,
    ),
}
_EXCEPTIONS = "shells_without_it"
_NEEDED = "program_that_it_needs"

_PROGRAMS = {
    # What `sps run` does, without slices. (The packages themselves import most of the others.)
    "under": """
        import os, sys, types
        for name in ("", ".cli", ".runtime"):
            package = sys.modules[PACKAGE + name] = types.ModuleType(PACKAGE + name)
            package.__path__ = [os.path.join(REPOSITORY, *(PACKAGE + name).split("."))]
        from shared_pathways_service.cli.child import CommandError, end_by_signal, run_child
        try:
            code = run_child(sys.argv[1:], os.environ)
        except CommandError as error:
            sys.stderr.write(f"{error}\\n")
            code = error.exit_code
        sys.exit(code if code >= 0 else end_by_signal(-code))
    """,
    "sps": """
        import sys
        sys.path.insert(0, REPOSITORY)
        from shared_pathways_service.cli import main
        main()
    """,
    "ask": """
        print("got", input("name? "))
    """,
    "says": """
        print("said")
    """,
    "secret": """
        import getpass
        print("got", getpass.getpass("secret? "))
    """,
    # Makes a process group of its own, as programs do that signal their workers.
    "leads": """
        import os, signal
        # (`input` may swallow a KeyboardInterrupt before it reads.)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # (Each program of a pipeline makes the pipeline's group the foreground when it starts.)
        os.write(2, b"all there?\\n")
        input()
        os.setpgrp()
        os.write(2, b"leading\\n")
        print("got", input("name? "))
        print("got", input("name? "))
    """,
    "debug": """
        number = 41
        breakpoint()
        print("continued")
    """,
    # Says which signals it gets, of those that it is asked to catch: INT, RTMIN and so on.
    "notes": """
        import os, signal, sys, time
        names = {getattr(signal, f"SIG{name}"): name for name in sys.argv[1:]}
        def got(number, frame):
            # Not by print: the next signal may come while it still works.
            os.write(2, f"got {names[number]}\\n".encode())
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        for number in names:
            signal.signal(number, got)
        os.write(2, b"ready\\n")
        for _ in range(6000):
            time.sleep(0.1)
    """,
    # Tidies up in its own time when it is interrupted.
    "tidies": """
        import os, sys, time
        try:
            os.write(2, b"ready\\n")
            # (Python notices a signal that comes just before it sleeps when it has slept.)
            for _ in range(6000):
                time.sleep(0.1)
        except KeyboardInterrupt:
            os.write(2, b"tidied\\n")
            sys.exit(5)
    """,
    "window": """
        import curses
        def draw(window):
            window.addstr(0, 0, "drawn")
            while (key := window.getch()) != ord("q"):
                window.clear()
                window.addstr(0, 0, "drawn")
                if key == curses.KEY_RESIZE:
                    window.addstr(1, 0, "size %d %d" % window.getmaxyx())
                elif key != curses.ERR:
                    window.addstr(2, 0, f"key {chr(key)}")
                window.refresh()
        curses.wrapper(draw)
        print("left the window")
    """,
    # Stops as some full-screen programs do: itself, or its whole group.
    "stops": """
        import os, signal, sys
        target = {"self": os.getpid(), "group": 0}[sys.argv[1]]
        os.kill(target, signal.Signals[sys.argv[2]])
        os.write(2, b"continued\\n")
    """,
}


def make_programs(directory: Path) -> Path:
    """Writes the programs into a directory, which goes on PATH; returns it."""
    names = {"REPOSITORY": str(REPOSITORY), "PACKAGE": shared_pathways_service.__name__}
    for name, source in _PROGRAMS.items():
        # (Without `site`, which takes longer than the rest. The packages of `sps` need it.)
        flags = "" if name == "sps" else " -S"
        constants = "".join(f"{key} = {text!r}\n" for key, text in names.items())
        path = directory / name
        path.write_text(f"#!{sys.executable}{flags}\n{constants}{textwrap.dedent(source)}")
        path.chmod(0o755)
    return directory


def needs(name: str) -> Callable[[_T], _T]:
    """Marks a test of `any_shell` that runs a program which not every machine has."""

    def mark(test: _T) -> _T:
        setattr(test, _NEEDED, name)
        return test

    return mark


def needed_by(test: object) -> str:
    """Returns the program that `needs` says of a test; empty: none."""
    found: str = getattr(test, _NEEDED, "")
    return found


def require(name: str) -> None:
    """Skips a test if a program is missing; fails it in CI, where scripts/shells installs it."""
    needed_program(name, f"install it, e.g. apt-get install {name}")


def without(**reasons: str) -> Callable[[_T], _T]:
    """Marks a test of `any_shell` that makes no sense in some of them; says why by shell."""

    def mark(test: _T) -> _T:
        setattr(test, _EXCEPTIONS, reasons)
        return test

    return mark


def exceptions_of(test: object) -> Mapping[str, str]:
    """Returns what `without` says of a test."""
    found: Mapping[str, str] = getattr(test, _EXCEPTIONS, {})
    return found


class Shell:
    """An interactive shell in a terminal; what is typed is not shown.

    Attributes:
      name: The shell.
      dialect: How things are said in it.
      screen: The terminal.
      directory: Where it is.
    """

    def __init__(self, name: str, shown: Screen, directory: Path) -> None:
        self.name = name
        self.dialect = DIALECTS[name]
        self.screen = shown
        self.directory = directory
        self.prompt()
        self.do("stty -echo")

    def begin(self, line: str, *names: str) -> None:
        """Types a line, and waits until its programs run, but not for the next prompt.

        A key reaches only those of a pipeline that the shell has started already.
        """
        self._type(line)
        for name in names:
            self.program(name)

    def do(self, line: str) -> str:
        """Types a line; returns what is shown until the next prompt."""
        self._type(line)
        return self.prompt()

    def key(self, key: str) -> None:
        """Types without a newline."""
        self.screen.type(key)

    def prompt(self) -> str:
        """Waits for the prompt; returns what is shown before it."""
        return _as_text(self.screen.expect(_PROMPT))

    def expect(self, text: str) -> str:
        """Waits until text is shown; returns what is shown before it."""
        return _as_text(self.screen.expect(text))

    def status(self) -> int:
        """Returns the exit code of the last command."""
        return int(self.do(f"echo {self.dialect.status}"))

    def program(self, name: str) -> psutil.Process:
        """Waits for a program of the terminal, and returns it."""

        def found() -> psutil.Process | None:
            for process in self.screen.processes():
                with contextlib.suppress(psutil.Error):
                    if _name_of(process.cmdline()) == name:
                        return process
            return None

        return wait_until(f"{name} to run", found)

    def wait_until_stopped(self, *names: str) -> None:
        """Waits until programs are stopped."""
        for process in map(self.program, names):
            wait_until(f"{process} to stop", functools.partial(_is_stopped, process))

    def wait_until_continued(self, *names: str) -> None:
        """Waits until programs are not stopped any more."""
        for process in map(self.program, names):
            wait_until(f"{process} to go on", lambda process=process: not _is_stopped(process))  # type: ignore[misc]

    def wait_for_foreground(self, name: str) -> None:
        """Waits until a program is in the foreground."""
        pid = self.program(name).pid
        wait_until(f"{name} in the foreground", lambda: self.screen.foreground() == os.getpgid(pid))

    def wait_until_empty(self) -> None:
        """Waits until all that it started has ended."""
        self.screen.wait_until_empty()

    def _type(self, line: str) -> None:
        self.screen.type(f"{line}\n")
        if self.dialect.echoes:
            self.screen.expect(_BEGUN)


def _as_text(shown: str) -> str:
    return _FISH_LINE_END.sub("", _ESCAPES.sub("", shown)).replace("\r\n", "\n")


def _is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def _name_of(words: Sequence[str]) -> str:
    """Returns the name of a program or script, given its command line."""
    if words[:1] == [sys.executable]:
        words = [word for word in words[1:] if not word.startswith("-")]
    return Path(words[0]).name if words else ""


@contextlib.contextmanager
def shell(name: str, programs: Path, directory: Path) -> Iterator[Shell]:
    """Runs an interactive shell in a terminal."""
    require(name)
    own = directory / ".shell"
    # (Else fish would begin to make completions from manual pages.)
    (own / "fish" / "generated_completions").mkdir(parents=True)
    environment = {
        # (Sizes that are in the environment would be taken for those of the terminal.)
        **{name: text for name, text in os.environ.items() if name not in ("LINES", "COLUMNS")},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PS1": _PROMPT,
        "ENV": "",
        "HISTFILE": "",
        "fish_history": "",
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"), str(own)),
    }
    with screen(DIALECTS[name].command, environment=environment, cwd=directory) as shown:
        yield Shell(name, shown, directory)
