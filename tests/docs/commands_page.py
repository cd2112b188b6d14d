"""Writes the page of `sps` with every command, argument and option, from the commands."""

from __future__ import annotations

import enum
import inspect
import math
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer

from shared_pathways_service import cli
from shared_pathways_service.cli import COMMANDS
from tests.docs.markdown import code, page, split_default, table

__all__ = ["text"]

_HEAD = """\
# Commands

This page lists every command of `sps`, from the code. `sps COMMAND --help` prints the same.

`sps` acts on the embedded service, or on the cluster that `--cluster --project --region`,
`--context` or `--pathways-service` names. Options may also be written with underscores, as in
pathwaysutils: `--gcs_bucket` is `--gcs-bucket`.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | success |
| 1 | failure; the message is on standard error, as `error: … hint: …` |
| 2 | usage: an option or a value is wrong |
| 3 | not ready, or not found |
| 4 | capacity: slices are taken, or the queue or the placement timed out |
| 5 | access denied |
| 129, 130, 143 | ended by SIGHUP (the terminal was closed), SIGINT (Ctrl-C) or SIGTERM |

`sps run` exits with its program's code. The code is 125 for its own failures before the program
starts, 126 if the program cannot be run, and 127 if it is not found. [Errors](errors.md) lists the
code of each error.

## sps
"""


def text() -> str:
    """Returns the page."""
    group: Any = typer.main.get_command(cli._app(None))
    rows = [
        (f"[`sps {name}`](#sps-{name})", command.help) for name, command in sorted(COMMANDS.items())
    ]
    parts = [_HEAD, _options(group, cli._options_of_all), table(("command", "what it does"), rows)]
    for name in sorted(COMMANDS):
        parts += _section(name)
    return page(parts)


def _section(name: str) -> Iterator[str]:
    command = cli.command(name)
    load = COMMANDS[name].load()
    more = inspect.cleandoc(inspect.unwrap(load).__doc__ or "").partition("\n")[2].strip()
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    words = [_shown_as(param) for param in arguments]
    yield f"## sps {name}"
    yield f"{COMMANDS[name].help}"
    yield f"Usage: {code(' '.join(['sps', name, '[OPTIONS]', *words]))}"
    if more:
        yield more
    if arguments:
        rows = [(code(_shown_as(param)), *_help_and_default(param)) for param in arguments]
        yield table(("argument", "what", "default"), rows)
    yield _options(command, load)


def _shown_as(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return word if param.required else f"[{word}]"


def _options(command: Any, function: Callable[..., None]) -> str:
    known = inspect.signature(function, eval_str=True).parameters
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    rows = [
        (_names(p), _takes(p, known[p.name].annotation), default, _variable(p), text)
        if p.name in known
        else (_names(p), "", "", "", text)
        for p in options
        for text, default in [_help_and_default(p)]
    ]
    return table(("option", "takes", "default", "variable", "what"), rows)


def _names(param: Any) -> str:
    return ", ".join(code(name) for name in [*param.opts, *param.secondary_opts])


def _takes(param: Any, annotation: Any) -> str:
    """Returns the form of an option's value, from the annotation, as typer's own is private."""
    kind, *metadata = get_args(annotation)
    option = next(part for part in metadata if isinstance(part, typer.models.OptionInfo))
    kinds = [part for part in (get_args(kind) or (kind,)) if part is not types.NoneType]
    repeatable = "; repeatable" if param.multiple else ""
    return _kind(kinds[0], option, param.metavar) + repeatable


def _kind(kind: Any, option: typer.models.OptionInfo, metavar: str | None) -> str:
    if kind is bool:
        return ""
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return " or ".join(code(choice.value) for choice in kind)
    if kind in (int, float):
        name = "a whole number" if kind is int else "a number"
        low, high = option.min, option.max
        if low is None or high is None:
            return name if low is None else f"{name} from {low} up"
        return f"{name} from {low} to {high}"
    if metavar:
        return code(metavar)
    return "a path" if kind is Path else "text"


def _help_and_default(param: Any) -> tuple[str, str]:
    """Returns the help, and the default: from the help's end if that names one."""
    text, default = split_default(param.help or "")
    return text, default or _default(param)


def _default(param: Any) -> str:
    value = param.default
    if value is None or value in ("", False, (), []):
        return code(param.secondary_opts[0]) if param.secondary_opts and value is False else ""
    if value is True:
        return code(param.opts[0])
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return code(getattr(value, "value", value))


def _variable(param: Any) -> str:
    given = param.envvar or ()
    return ", ".join(code(name) for name in ([given] if isinstance(given, str) else given))
