"""What mkdocs does with each page before it reads it."""

from __future__ import annotations

import re
from typing import Any

_ITEM = re.compile(r"([-*]|\d+\.) ")
_FENCE = re.compile(r"\s*(```|~~~)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts a blank line before a list that follows a line of text.

    CommonMark, which the pages are written in, needs none there; Python-Markdown would go on with
    the paragraph.
    """
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        begins = _ITEM.match(line) and before.strip() and not before.startswith(" ")
        if begins and not fenced and not _ITEM.match(before):
            lines.append("")
        if _FENCE.match(line):
            fenced = not fenced
        lines.append(line)
    return "\n".join(lines)
