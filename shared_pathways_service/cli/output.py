"""What commands print: JSON for programs, tables for people."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

__all__ = ["AsJson", "print_json", "print_line", "print_note", "print_table"]

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
    """Prints what people shall know while a command goes on, on standard error.

    A terminal that is gone takes nothing, which is no reason to do less: what is undone then is
    undone to its end. Nor is it that there is no standard error at all.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"sps: {text}\n")


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
