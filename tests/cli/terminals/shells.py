"""Interactive shells in terminals, and the programs that tests run in them."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

import shared_pathways_service
from harness.deadlines import wait_until
from harness.processes import REPOSITORY
from harness.terminals import Screen, screen

__all__ = ["CTRL_BACKSLASH", "CTRL_C", "CTRL_Z", "Shell", "make_programs", "needs", "shell"]

CTRL_C, CTRL_Z, CTRL_BACKSLASH = "\x03", "\x1a", "\x1c"
_PROMPT = "@> "
_SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "--noediting", "-i"],
    "dash": ["dash", "-i"],
}

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
            time.sleep(600)
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


def needs(name: str) -> pytest.MarkDecorator:
    """Marks a test of a program that not every machine has."""
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")


class Shell:
    """An interactive shell in a terminal; what is typed is not shown.

    Attributes:
      name: The shell.
      screen: The terminal.
      directory: Where it is.
    """

    def __init__(self, name: str, shown: Screen, directory: Path) -> None:
        self.name = name
        self.screen = shown
        self.directory = directory
        self._type("stty -echo")
        self.prompt()
        self.prompt()

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
        return self.screen.expect(_PROMPT).replace("\r\n", "\n")

    def expect(self, text: str) -> str:
        """Waits until text is shown; returns what is shown before it."""
        return self.screen.expect(text).replace("\r\n", "\n")

    def status(self) -> int:
        """Returns the exit code of the last command."""
        return int(self.do("echo $?"))

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
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    environment = {
        # (Sizes that are in the environment would be taken for those of the terminal.)
        **{name: text for name, text in os.environ.items() if name not in ("LINES", "COLUMNS")},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PS1": _PROMPT,
        "ENV": "",
        "HISTFILE": "",
        "TERM": "xterm",
    }
    with screen(_SHELLS[name], environment=environment, cwd=directory) as shown:
        yield Shell(name, shown, directory)
