"""Pieces of Markdown that the reference pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["cell", "code", "page", "table"]


def code(text: object) -> str:
    """Returns a text as code; an empty one stays empty."""
    return f"`{text}`" if str(text) else ""


def cell(text: str) -> str:
    """Returns a text that can stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; an empty string where there are no rows."""
    lines = [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]
    if not lines:
        return ""
    top = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*top, *lines]) + "\n"


def page(parts: Iterable[str]) -> str:
    """Returns parts as one text, a blank line between them; empty ones are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
