"""Parses flags of the servers (``--name=value`` as in absl) into a frozen dataclass.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class WorkerOptions:
        server_port: int | None = flag(None, parse=port, help="TCP port; 0: any")

    options = parse_or_exit(WorkerOptions, "worker", sys.argv[1:])

A flag takes precedence over its variable (`env`), and that over the default. A dataclass checks
fields against each other in `__post_init__`, raising `InvalidRequestError`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.runtime.setting_readers import check_patience

__all__ = [
    "choice",
    "comma_separated",
    "count",
    "flag",
    "parse_flags",
    "parse_or_exit",
    "port",
    "positive_int",
    "prefixed_flags",
    "seconds",
    "seconds_or_zero",
]

T = TypeVar("T")

_USAGE = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flag:
    """The parser and help of one field of an options dataclass, in the field's metadata."""

    help: str
    parse: Callable[[str], Any]
    env: tuple[str, ...] = ()
    is_switch: bool = False
    is_prefix: bool = False


def flag(
    default: T,
    *,
    help: str,  # noqa: A002
    parse: Callable[[str], T] | None = None,
    env: str | tuple[str, ...] = (),
) -> T:
    """Declares a field that ``--FIELD=value`` sets.

    Args:
      default: The value without flag and variable.
      help: One or two lines for ``--help``.
      parse: Parses the value, and raises ValueError with the expected form. By default the type of
        `default` (str, int, float or bool) determines it.
      env: Variables to read, in this order, if the flag is not given.
    """
    made = _Flag(
        help=help,
        parse=parse or _PARSERS[type(default)],
        env=(env,) if isinstance(env, str) else env,
        is_switch=parse is None and isinstance(default, bool),
    )
    field: T = dataclasses.field(default=default, metadata={"flag": made})
    return field


def prefixed_flags(*, help: str) -> tuple[str, ...]:  # noqa: A002
    """Declares a field that collects, unchanged, all flags whose names begin with ``FIELD_``.

    A field ``xla`` becomes ``("--xla_a=1", "--xla_b=2")``.
    """
    made = _Flag(help=help, parse=str, is_prefix=True)
    field: tuple[str, ...] = dataclasses.field(default=(), metadata={"flag": made})
    return field


def parse_or_exit(cls: type[T], program: str, argv: Sequence[str]) -> T:
    """Parses the command line; on an error prints it, and ends the process with exit code 2.

    Args:
      cls: The dataclass to make.
      program: The server's name, for messages.
      argv: The arguments, without the program's name.
    """
    if "--help" in argv or "-h" in argv:
        sys.stdout.write(_help(cls, program))
        sys.exit(0)
    try:
        check_patience(os.environ)
        return parse_flags(cls, argv, os.environ)
    except InvalidRequestError as error:
        _exit_usage(f"{program}: error: {error}\n")


def parse_flags(cls: type[T], argv: Sequence[str], environ: Mapping[str, str]) -> T:
    """Parses a command line into a dataclass whose fields were declared by `flag`.

    Raises:
      InvalidRequestError: A flag is unknown or its value is wrong; ``field`` is the flag.
    """
    flags = _flags(cls)
    values: dict[str, Any] = {}
    left = list(argv)
    while left:
        word = left.pop(0)
        name, equals, text = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise InvalidRequestError(word, word, "flags of the form --name=value")
        prefix = _prefix_of(name, flags)
        if prefix:
            values[prefix] = (*values.get(prefix, ()), word)
        elif not equals and (switch := _switch_of(name, flags)):
            values[switch] = switch == name
        else:
            known = _known(name, flags)
            if not equals and not left:
                raise InvalidRequestError(f"--{name}", "", "a value")
            values[name] = _value(f"--{name}", known, text if equals else left.pop(0))
    for name, known in flags.items():
        variable = next((v for v in known.env if environ.get(v)), None)
        if name not in values and variable is not None:
            values[name] = _value(variable, known, environ[variable])
    return cls(**values)


# ---- parsers of values


def port(text: str) -> int:
    """Reads a TCP port, 0 for any."""
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65535:
        raise ValueError("a port from 0 to 65535")
    return number


def count(text: str) -> int:
    """Reads a whole number from 0 up."""
    if not text.isdecimal():
        raise ValueError("a whole number from 0 up")
    return int(text)


def choice(*words: str) -> Callable[[str], str]:
    """Returns a parser that accepts one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return read


def positive_int(text: str) -> int:
    """Reads a whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("a whole number from 1 up")
    return int(text)


def seconds(text: str) -> float:
    """Reads a finite number of seconds, more than 0."""
    number = _float(text)
    if not 0 < number < math.inf:
        raise ValueError("seconds, more than 0")
    return number


def seconds_or_zero(text: str) -> float:
    """Reads a finite number of seconds, at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise ValueError("seconds from 0 up")
    return number


def comma_separated(text: str) -> tuple[str, ...]:
    """Reads a list of non-empty words."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise ValueError("words separated by commas")
    return words


def _bool(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError("true or false")
    return known[text.lower()]


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


_PARSERS: dict[type, Callable[[str], Any]] = {str: str, int: _int, float: _float, bool: _bool}

# ---- flags


def _flags(cls: type) -> dict[str, _Flag]:
    fields = dataclasses.fields(cls)
    return {f.name: f.metadata["flag"] for f in fields if "flag" in f.metadata}


def _switch_of(name: str, flags: Mapping[str, _Flag]) -> str:
    """Returns the switch that ``--NAME`` or ``--noNAME`` sets, or an empty string."""
    names = [name, name[2:]] if name.startswith("no") else [name]
    return next((n for n in names if n in flags and flags[n].is_switch), "")


def _value(name: str, known: _Flag, text: str) -> object:
    try:
        return known.parse(text)
    except ValueError as error:
        raise InvalidRequestError(name, text, str(error)) from error


def _prefix_of(name: str, flags: Mapping[str, _Flag]) -> str:
    """Returns the field that collects this flag, or an empty string."""
    if name in flags:
        return ""
    return next((n for n, f in flags.items() if f.is_prefix and name.startswith(n + "_")), "")


def _known(name: str, flags: Mapping[str, _Flag]) -> _Flag:
    known = flags.get(name)
    if known is not None and not known.is_prefix:
        return known
    near = difflib.get_close_matches(name, flags, n=3)
    hint = f"did you mean {', '.join(f'--{n}' for n in near)}?" if near else "--help lists them"
    raise InvalidRequestError(
        f"--{name}", name, "a known flag", message=f"unknown flag --{name}", hint=hint
    )


def _help(cls: type, program: str) -> str:
    lines = [f"usage: {program} [--flag=value ...]", ""]
    for field in dataclasses.fields(cls):
        known: _Flag | None = field.metadata.get("flag")
        if known is None:
            continue
        name = f"--{field.name}_*" if known.is_prefix else f"--{field.name}"
        notes = [f"variable {' or '.join(known.env)}"] if known.env else []
        if field.default not in (None, "", ()):
            notes.append(f"default {field.default}")
        lines.append(f"  {name}" + (f"  ({', '.join(notes)})" if notes else ""))
        lines.append(f"      {known.help}")
    return "\n".join(lines) + "\n"


def _exit_usage(message: str) -> NoReturn:
    sys.stderr.write(message)
    sys.exit(_USAGE)
