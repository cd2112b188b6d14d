"""Runs the blocks of one page in order, as a reader would: one directory, one Python session.

    python -m tests.docs.run_page docs/index.md DIRECTORY

What a block shows is compared with what the page says that it shows, `...` standing for anything
and blanks for blanks. Of a `console` block each command is compared with the lines behind it.
`sps serve`, with variables before it or none, goes on behind the others until the page ends, as in
a terminal of its own.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.deadlines import deadline
from shared_pathways_service.runtime.settings import Settings
from tests.docs.blocks import ROOT, Block, blocks_of, is_run, not_run

__all__ = ["commands_of", "main", "started_by"]

#: Seconds for a command; it shows what it shows, however slow the machine is.
_DEADLINE_S = deadline(150.0)
_LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_INTERRUPTED = 130
_SERVE = re.compile(r"(\w+=\S* )*sps serve\b")
#: What a reader's commands start, as the programs of these names in the directory of the test do.
#: Without a shell in between, their interpreters may be forked.
_STARTED = {
    "sps": [sys.executable, "-m", "shared_pathways_service.cli"],
    "python": [sys.executable],
}
_SHELL = ("bash", "-euo", "pipefail", "-c")
#: Behind a command that fails, which is run without a shell all the same.
_SAYS_CODE = ' || echo "exit code $?"'
#: What a shell does more with than to split words, by its characters outside of and within quotes.
_OPERATORS = frozenset("();<>|&")
_EXPANDED = frozenset("$`\\*?[{~!#\n")


class _Failed(Exception):  # noqa: N818 - says what happened
    """A block did not do what its page says."""


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Returns the commands of a `console` block, each with the lines that it shows."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), ""))
        else:
            command, shown = found[-1]
            found[-1] = (command, shown + line)
    return found


def main(page: str, directory: str) -> None:
    """Runs the page, in that directory; raises what a block raises."""
    left_out = not_run()
    blocks = [block for block in blocks_of(ROOT / page) if is_run(block, left_out)]
    os.chdir(directory)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.ExitStack() as stack:
        for block in blocks:
            try:
                _run(block, names, stack)
            except Exception as error:
                error.add_note(f"this is what {block.page}:{block.line} does")
                raise
            sys.stdout.write(f"{block.page}:{block.line}: {block.first_line}\n")
            sys.stdout.flush()


def _run(block: Block, names: dict[str, Any], stack: contextlib.ExitStack) -> None:
    if block.language == "python":
        _compare(_python(block, names), block.shows or "")
    elif block.language == "toml":
        _settings(block)
    elif block.language == "console":
        for command, shows in commands_of(block):
            _compare(_shell(command), shows)
    elif _SERVE.match(block.text):
        stack.enter_context(_serving(block.text))
    else:
        _compare(_shell(block.text), block.shows or "")


def _python(block: Block, names: dict[str, Any]) -> str:
    # The line numbers of a traceback are the page's.
    source = "\n" * block.line + block.text
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, block.page, "exec"), names)
    return out.getvalue()


def started_by(text: str) -> list[str]:
    """Returns what starts a reader's command: without a shell, where that would only split it."""
    return _started_without_a_shell(text) or [*_SHELL, text]


def _started_without_a_shell(text: str) -> list[str] | None:
    line = text.strip()
    if not set(line) & _EXPANDED:
        split = shlex.shlex(line, posix=True, punctuation_chars=True)
        split.whitespace_split = True
        words = list(split)
        if words[:1] and words[0] in _STARTED and not any(set(w) <= _OPERATORS for w in words):
            return [*_STARTED[words[0]], *words[1:]]
    return None


def _shell(text: str) -> str:
    command = text.strip()
    started = _started_without_a_shell(command.removesuffix(_SAYS_CODE))
    says_code = started is not None and command.endswith(_SAYS_CODE)
    done = subprocess.run(
        started or [*_SHELL, text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode and says_code:
        return f"{done.stdout}exit code {done.returncode}\n"
    if done.returncode:
        raise _Failed(f"exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


@contextlib.contextmanager
def _serving(text: str) -> Iterator[None]:
    words = shlex.split(text)
    name = words.index("sps")
    variables = dict(word.split("=", 1) for word in words[:name])
    process = subprocess.Popen(
        [*_STARTED["sps"], *words[name + 1 :]],
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(_DEADLINE_S)
    if code != _INTERRUPTED:
        raise _Failed(f"{text.strip()} ended with {code}, not with {_INTERRUPTED}")


def _settings(block: Block) -> None:
    """Reads every profile, as the package does."""
    file = Path("config.toml").absolute()
    file.write_text(block.text)
    for profile in tomllib.loads(block.text)["profiles"]:
        Settings.load(profile=profile, config=str(file))


def _compare(got: str, said: str) -> None:
    if said.strip() and not doctest.OutputChecker().check_output(said, got, _LIKE):
        raise _Failed(f"the page says that it shows\n{said}\nand it shows\n{got}")


if __name__ == "__main__":
    main(*sys.argv[1:])
