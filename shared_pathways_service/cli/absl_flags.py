"""Runs `sps` commands with flags in absl's syntax, for the modules named like upstream's scripts.

absl takes ``--flag value`` and ``--flag=value`` with one dash or two, and a boolean flag as
``--flag``, ``--noflag`` or ``--flag=true`` (abseil.io, "Abseil Python Flags").
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from shared_pathways_service.cli import command, main

__all__ = ["run_command", "sps_words"]

_IS_ON: Mapping[str, bool] = {
    **dict.fromkeys(("", "true", "t", "1"), True),
    **dict.fromkeys(("false", "f", "0"), False),
}


def run_command(
    name: str, arguments: Sequence[str] | None = None, defaults: Mapping[str, Any] | None = None
) -> None:
    """Runs a command of `sps` with flags in absl's syntax, and ends the process.

    Args:
      name: The command's, e.g. ``deploy``.
      arguments: By default those of the process.
      defaults: Values of the command's parameters that the arguments do not name.
    """
    given = sys.argv[1:] if arguments is None else arguments
    main([name, *sps_words(name, given)], defaults={name: dict(defaults or {})})


def sps_words(name: str, arguments: Sequence[str]) -> list[str]:
    """Converts arguments to the syntax of `sps`.

    A word that is not a flag of the command is left unchanged: the parser refuses it by name.

    Args:
      name: The command's, e.g. ``deploy``.
      arguments: In absl's syntax up to the first argument that is not a flag.
    """
    options = {
        _plain(option): param
        for param in command(name).params
        if param.param_type_name == "option"
        for option in param.opts
    }
    rest = deque(arguments)
    words: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        flag, equals, value = rest[0].partition("=")
        flag = _plain(flag)
        if flag in options and not options[flag].is_flag:
            rest.popleft()
            if not equals and rest:
                value, equals = rest.popleft(), "="
            words.append(f"--{flag}{equals}{value}")
        else:
            words += _switch(rest.popleft(), flag, value, options)
    return [*words, *rest]


def _switch(word: str, flag: str, value: str, options: Mapping[str, Any]) -> list[str]:
    """Converts a boolean flag to the syntax of `sps`; empty if the flag is off by default."""
    name = flag if flag in options else flag.removeprefix("no")
    is_on = _IS_ON.get(value.lower())
    if name not in options or not options[name].is_flag or is_on is None:
        return [word]
    if name != flag:
        is_on = not is_on
    return [f"--{name}"] if is_on else options[name].secondary_opts[:1]


def _plain(option: str) -> str:
    return option.lstrip("-").replace("_", "-")
