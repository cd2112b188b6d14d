"""Formats parts of the reference pages as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["cell", "code", "page", "split_default", "table"]

_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")


def code(text: object) -> str:
    """Returns a text as code; an empty one stays empty."""
    return f"`{text}`" if str(text) else ""


def cell(text: str) -> str:
    """Returns a text that can stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; an empty string without rows."""
    lines = [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]
    if not lines:
        return ""
    top = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*top, *lines]) + "\n"


def split_default(text: str) -> tuple[str, str]:
    """Splits an option's help into the text, and the default that the help names at its end."""
    found = _DEFAULT.search(text)
    return (text[: found.start()], found[1]) if found else (text, "")


def page(parts: Iterable[str]) -> str:
    """Joins non-empty parts with blank lines."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
