"""Converts the core's dataclasses to plain JSON data and back, by their annotations."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from shared_pathways_service.api.topology import InstanceType

__all__ = ["from_plain", "to_plain"]

T = TypeVar("T")


def to_plain(value: object) -> Any:  # noqa: PLR0911 - one of each type
    """Converts a value of the core to plain JSON data; infinity becomes text."""
    if isinstance(value, InstanceType):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(kind: type[T], data: Any) -> T:
    """Converts plain JSON data back to the value.

    Args:
      kind: The value's type: a dataclass, or the annotation of a field of one.
      data: The result of `to_plain`; missing fields get their defaults.

    Raises:
      ValueError: The data do not have that type.
    """
    try:
        made: T = _made(kind, data)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no {getattr(kind, '__name__', kind)}: {error}") from error
    return made


def _made(kind: Any, data: Any) -> Any:  # noqa: PLR0911 - one of each type
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        (some,) = (one for one in arguments if one is not types.NoneType)
        return None if data is None else _made(some, data)
    if origin is tuple:
        if arguments[1:] == (...,):
            return tuple(_made(arguments[0], item) for item in data)
        return tuple(_made(one, item) for one, item in zip(arguments, data, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        key, item = arguments
        return {_made(key, name): _made(item, value) for name, value in data.items()}
    if kind is InstanceType:
        return InstanceType.parse(data)
    if hasattr(kind, "__dataclass_fields__"):
        hints = _hints(kind)
        return kind(**{name: _made(hints[name], value) for name, value in data.items()})
    # (Scalars are converted: a number given as text is accepted.)
    return kind(data)


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)
