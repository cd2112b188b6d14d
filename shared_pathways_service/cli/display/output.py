"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from shared_pathways_service.runtime.terminal import LastingStream

__all__ = [
    "AsJson",
    "print_aside",
    "print_error",
    "print_json",
    "print_line",
    "print_note",
    "print_table",
]

#: Columns where there is no terminal.
_WIDE = 240

#: The option of every command that prints data.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def print_json(data: object) -> None:
    """Prints one line of JSON."""
    print_line(json.dumps(data))


def print_line(text: str) -> None:
    """Prints a line, at once: who reads it may wait for it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Prints what people shall know while a command goes on, as `print_aside`."""
    print_aside(f"sps: {text}")


def print_error(text: str) -> None:
    """Prints what failed, as `print_aside`."""
    print_aside(f"error: {text}")


def print_aside(line: str) -> None:
    """Prints a line for people on standard error; none is written there in another way.

    A terminal that is gone takes nothing, and there may be no standard error at all. Neither is a
    reason to do less, or to end with another exit code.
    """
    LastingStream(sys.stderr).print(line)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table without lines; nothing is cut off."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415

    table = Table(*head, box=None)
    for row in rows:
        table.add_row(*row)
    # (What is cut off at the width of no terminal would be lost.)
    width = None if sys.stdout.isatty() else _WIDE
    Console(width=width, soft_wrap=True, highlight=False, markup=False).print(table)
