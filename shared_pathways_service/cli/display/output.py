"""Prints the output of commands: JSON for programs, tables and lines for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from shared_pathways_service.runtime.terminal import LastingStream

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "AsJson",
    "make_console",
    "make_table",
    "print_aside",
    "print_error",
    "print_json",
    "print_line",
    "print_log_tail",
    "print_note",
    "print_table",
]

#: Columns and lines without a terminal.
_WIDE, _HIGH = 240, 25

#: Characters from which a word may be split.
_LONG_WORD = 12
#: Titles of columns with names that other commands take.
_NAMES = ("SLICE", "TENANT", "HOLDER")

#: The option of every command that prints data.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def print_json(data: object) -> None:
    """Prints one line of JSON."""
    print_line(json.dumps(data))


def print_line(text: str) -> None:
    """Prints a line and flushes it: a reader may be waiting for it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Prints a note of a running command, as `print_aside` does."""
    print_aside(f"sps: {text}")


def print_error(text: str) -> None:
    """Prints an error, as `print_aside` does."""
    print_aside(f"error: {text}")


def print_log_tail(lines: Sequence[str]) -> None:
    """Prints the last lines of a proxy's log, as `print_aside` does."""
    if lines:
        print_aside("The proxy's log ends with:")
    for line in lines:
        print_aside(f"  {line}")


def print_aside(line: str) -> None:
    """Prints a line for people on standard error; all lines there are printed by this function.

    A closed terminal, or a closed standard error, must neither stop a command nor change its exit
    code.
    """
    LastingStream(sys.stderr).print(line)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table without lines."""
    make_console().print(make_table(head, rows))


def make_console() -> Console:
    """Returns a console for tables on standard output."""
    from rich.console import Console  # noqa: PLC0415 - slow to import

    if sys.stdout.isatty():
        return Console(soft_wrap=True, highlight=False, markup=False)
    # (With FORCE_COLOR and TERM=dumb, as of some CI, rich takes a width only with a height.)
    return Console(width=_WIDE, height=_HIGH, soft_wrap=True, highlight=False, markup=False)


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Makes a table without lines that cuts nothing off.

    The first column and those of names are never wrapped either, so that a name can be copied into
    the next command. On a narrow terminal the other columns wrap, at words if they are short.
    """
    from rich.table import Table  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415

    lines = list(rows)
    table = Table(box=None)
    for number, title in enumerate(head):
        texts = [title, *(line[number] for line in lines)]
        if number == 0 or title.upper() in _NAMES:
            table.add_column(title, no_wrap=True, min_width=max(map(len, texts)))
        else:
            width = max(len(word) for text in texts for word in text.split() or [""])
            table.add_column(title, overflow="fold", min_width=min(width, _LONG_WORD))
    for line in lines:
        table.add_row(*map(Text, line))
    return table
