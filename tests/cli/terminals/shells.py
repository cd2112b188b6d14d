"""Interactive shells in terminals, and the programs that tests run in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

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
    # What `sps run` does, without slices.
    "under": """
        import os, sys
        sys.path.insert(0, REPOSITORY)
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
        import os
        os.setpgrp()
        print("got", input("name? "))
        print("got", input("name? "))
    """,
    "debug": """
        number = 41
        breakpoint()
        print("continued")
    """,
    # Says which signals it gets, until SIGALRM or the end of its time.
    "notes": """
        import os, signal, sys, time
        def got(number, frame):
            # Not by print: the next signal may come while it still works.
            os.write(2, f"got {number}\\n".encode())
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        for name in sys.argv[1:]:
            signal.signal(signal.Signals[name], got)
        os.write(2, b"ready\\n")
        for _ in range(6000):
            time.sleep(0.1)
    """,
    # The same, by numbers.
    "catches": """
        import os, signal, sys, time
        for number in map(int, sys.argv[1:]):
            signal.signal(number, lambda number, _: os.write(2, f"got {number}\\n".encode()))
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
        os.write(2, b"stopping\\n")
        target = {"self": os.getpid(), "group": 0}[sys.argv[1]]
        os.kill(target, signal.Signals[sys.argv[2]])
        os.write(2, b"continued\\n")
    """,
}


def make_programs(directory: Path) -> Path:
    """Writes the programs into a directory, which goes on PATH; returns it."""
    for name, source in _PROGRAMS.items():
        code = textwrap.dedent(source).replace("REPOSITORY", repr(str(REPOSITORY)))
        path = directory / name
        path.write_text(f"#!{sys.executable}\n{code}")
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

    def begin(self, line: str) -> None:
        """Types a line, and does not wait for the next prompt."""
        self._type(line)

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
                    words = process.cmdline()
                    if name in {Path(word).name for word in words[:2]}:
                        return process
            return None

        return wait_until(f"{name} to run", found)

    def wait_for_states(self, status: str, *names: str) -> None:
        """Waits until programs are stopped, or not."""
        for name in names:
            process = self.program(name)
            wait_until(
                f"{name} to be {status}",
                lambda process=process: process.status() == status,  # type: ignore[misc]
            )

    def wait_for_foreground(self, name: str) -> None:
        """Waits until a program is in the foreground."""
        group = os.getpgid(self.program(name).pid)
        wait_until(f"{name} in the foreground", lambda: self.screen.foreground() == group)

    def wait_until_empty(self) -> None:
        """Waits until all that it started has ended."""
        self.screen.wait_until_empty()

    def _type(self, line: str) -> None:
        self.screen.type(f"{line}\n")


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
