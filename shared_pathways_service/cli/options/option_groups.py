"""Adds groups of options to commands: a command takes each group as one dataclass parameter."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

__all__ = ["takes_group", "takes_options"]

_Result = TypeVar("_Result")


def takes_group(
    command: Callable[..., _Result], parameter: str, group: type[Any], options: Mapping[str, Any]
) -> Callable[..., _Result]:
    """Adds the options of a group to a command.

    Args:
      command: A function with a parameter for the group.
      parameter: That parameter's name.
      group: A dataclass, whose fields' defaults become those of the options.
      options: Annotations of the options by field; other fields keep their defaults.
    """

    @functools.wraps(command)
    def wrapped(**given: Any) -> _Result:
        made = group(**{name: given.pop(name) for name in options})
        return command(**given, **{parameter: made})

    own = inspect.signature(command, eval_str=True).parameters.values()
    defaults = {field.name: field.default for field in dataclasses.fields(group)}
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation
        )
        for name, annotation in options.items()
    ]
    parameters = [*(p for p in own if p.name != parameter), *added]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def takes_options(
    parameter: str, group: type[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of a group whose fields are annotated with them to a command.

    Args:
      parameter: The command's parameter for the group.
      group: A dataclass; each of its fields is ``Annotated`` with a ``typer.Option``.
    """
    options = get_type_hints(group, include_extras=True)
    return functools.partial(takes_group, parameter=parameter, group=group, options=options)
