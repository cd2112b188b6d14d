"""Completes lines of ``%sps``: commands, options, and names of connections and jobs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

__all__ = ["completions"]


def completions(line: str, group_of: Callable[[str | None], Any]) -> list[str]:
    """Returns what the last word of a line may become.

    Args:
      line: The text before the cursor, without the magic's name.
      group_of: Returns the group of commands, with one command loaded.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        # An open quotation mark: a value that only the user knows.
        return []
    incomplete = words.pop() if words and not line[-1].isspace() else ""
    if not words:
        names = group_of(None).commands
        return [name for name in names if name.startswith(incomplete)]
    command = group_of(words[0]).commands.get(words[0])
    if command is None:
        return []
    context = command.make_context(words[0], words[1:], resilient_parsing=True)
    found = []
    if not incomplete.startswith("-"):
        arguments = (p for p in command.params if p.param_type_name == "argument")
        found = [item for one in arguments for item in one.shell_complete(context, incomplete)]
    found = found or command.shell_complete(context, incomplete or "-")
    return [item.value for item in found]
