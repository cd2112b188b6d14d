"""Converts the core's dataclasses to plain JSON data and back, by their annotations."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType

__all__ = ["from_plain", "to_plain"]

T = TypeVar("T")

#: The former names of fields of a request, which used to be beside the fields of the record.
_FORMER_NAMES = {"name": "tenant", "elastic_slices": "num_elastic"}


def to_plain(value: object) -> Any:  # noqa: PLR0911 - one of each type
    """Converts a value of the core to plain JSON data; infinity becomes text."""
    if value is None or type(value) in {str, int, bool}:
        return value
    if isinstance(value, InstanceType):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name in _field_names(type(value))}
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(kind: type[T], data: Any) -> T:
    """Converts plain JSON data back to the value.

    After a downgrade, the data may have fields that this release does not know; it ignores them,
    as it does in messages of newer proxies. What an older release must not overlook therefore
    takes another version of the file (`Store`) or format of the log.

    Args:
      kind: The value's type: a dataclass, or the annotation of a field of one.
      data: The result of `to_plain`, also by another release: missing fields get their defaults,
        and unknown ones are ignored.

    Raises:
      ValueError: The data do not have that type.
    """
    try:
        made: T = _made(kind, data)
    except (TypeError, KeyError, AttributeError) as error:
        name = getattr(kind, "__name__", kind)
        raise ValueError(f"a {name} of another form: {error}") from error
    return made


Maker = Callable[[Any], Any]


def _made(kind: Any, data: Any) -> Any:
    return _maker(kind)(data)


@functools.cache
def _maker(kind: Any) -> Maker:
    """Returns what makes values of a type: annotations are looked at once."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        (some,) = (_maker(one) for one in arguments if one is not types.NoneType)
        return lambda data: None if data is None else some(data)
    if origin is tuple:
        return _tuple_maker(*arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_maker(*map(_maker, arguments))
    if kind is InstanceType:
        return InstanceType.parse
    if hasattr(kind, "__dataclass_fields__"):
        return _dataclass_maker(kind)
    # (Scalars are converted: a number given as text is accepted.)
    return kind  # type: ignore[no-any-return]


def _tuple_maker(*arguments: Any) -> Maker:
    if arguments[1:] == (...,):
        each = _maker(arguments[0])
        return lambda data: tuple(map(each, data))
    makers = tuple(map(_maker, arguments))
    return lambda data: tuple(make(item) for make, item in zip(makers, data, strict=True))


def _mapping_maker(key: Maker, item: Maker) -> Maker:
    def make(data: Any) -> Any:
        if isinstance(data, list):  # the placements in state files of the first releases
            data = {first: others for first, *others in data}
        return {key(name): item(value) for name, value in data.items()}

    return make


def _dataclass_maker(kind: Any) -> Maker:
    hints = typing.get_type_hints(kind)
    makers = {field.name: _maker(hints[field.name]) for field in dataclasses.fields(kind)}
    has_request = hints.get("request") is TenantRequest

    def make(data: Any) -> Any:
        if has_request and "request" not in data:
            data = _with_request(data)
        known = ((name, value) for name, value in data.items() if name in makers)
        return kind(**{name: makers[name](value) for name, value in known})

    return make


def _with_request(data: Mapping[str, Any]) -> dict[str, Any]:
    """Moves the fields of a tenant's request into one, in a record of an older release."""
    names = {field.name: field.name for field in dataclasses.fields(TenantRequest)} | _FORMER_NAMES
    request = {name: data[former] for name, former in names.items() if former in data}
    others = {name: value for name, value in data.items() if name not in names.values()}
    return {**others, "request": request}


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))
