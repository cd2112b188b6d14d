"""Options of `sps serve` for the resource manager's policies, made from the servers' flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.options.option_groups import takes_group
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.policies import PolicyOptions, policy_names

__all__ = ["Policies", "takes_policies"]

#: Placeholders of values, by the suffix of an option's name.
_METAVARS = {"_s": "SECONDS", "_bytes": "BYTES", "_days": "DAYS", "_address": "ADDRESS"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policies(PolicyOptions):
    """Policy options whose errors name the options of a command."""

    def __post_init__(self) -> None:
        """Checks options against each other."""
        try:
            super().__post_init__()
        except InvalidRequestError as error:
            field = _option(error.field.removeprefix("--"))
            raise InvalidRequestError(field, error.value, error.expected) from error


def _option(name: str) -> str:
    """Returns a command's option for a server's flag: without the unit, except for bytes."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _parser(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def parse(given: Any) -> Any:
        if not isinstance(given, str):
            return given  # the default
        try:
            return read(given)
        except ValueError as error:
            raise typer.BadParameter(f"{given!r} is not {error}") from error

    return parse


def _annotation(field: dataclasses.Field[Any]) -> Any:
    known = field.metadata["flag"]
    ends = (metavar for end, metavar in _METAVARS.items() if field.name.endswith(end))
    return Annotated[
        Any,
        typer.Option(
            _option(field.name),
            metavar=next(ends, "COUNT" if field.name != "metrics_port" else "PORT"),
            parser=_parser(known.parse),
            envvar=list(known.env),
            help=known.help,
        ),
    ]


_OPTIONS = {
    field.name: _annotation(field)
    for field in dataclasses.fields(Policies)
    if field.name in policy_names()
}


def takes_policies(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command, as its parameter `policies`."""
    return takes_group(command, "policies", Policies, _OPTIONS)
