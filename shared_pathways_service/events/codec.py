"""Converts an event's own fields to and from their flat form, which has only JSON's scalars.

Older versions read and write this form. A list of texts is joined by newlines, a list of integers
by commas; an object is JSON text. None and empty values are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

__all__ = ["Scalar", "flatten", "unflatten", "wire"]

#: Values of the flat form: JSON's scalars.
Scalar = str | int | float | bool | None

#: Numbers that JSON does not support; the ledger of a training run writes them as texts.
_NOT_FINITE = ("nan", "inf", "-inf")
#: Exceptions of readers if the value does not have the field's type.
_UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)


def wire(name: str = "", default: Any = dataclasses.MISSING, *, always: bool = False) -> Any:
    """Declares a field with a special flat form.

    Args:
      name: Its name in the flat form; empty: that of the field.
      default: As for `dataclasses.field`.
      always: Whether the flat form includes it even if it is None or empty.
    """
    metadata = {"always": always, **({"wire": name} if name else {})}
    return dataclasses.field(default=default, metadata=metadata)


def flatten(event: object, common: frozenset[str]) -> dict[str, Scalar]:
    """Returns the flat form.

    Args:
      event: A dataclass.
      common: Fields that are not part of it.
    """
    flat: dict[str, Scalar] = {}
    for field, name, _ in _own(type(event), common):
        value = getattr(event, field.name)
        # (Not a comparison, because NumPy's numbers compare to a tuple elementwise.)
        is_empty = value is None or (isinstance(value, tuple | Mapping) and not value)
        if not is_empty or field.metadata.get("always"):
            flat[name] = _scalar(value)
    return flat


def _scalar(value: Any) -> Scalar:
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if not isinstance(value, tuple):
        return cast("Scalar", value)
    if value and isinstance(value[0], int):
        return ",".join(map(str, value))
    return "\n".join(value)


def unflatten(
    cls: type[object], flat: Mapping[str, Scalar], common: frozenset[str]
) -> dict[str, Any]:
    """Returns the arguments for a class, without fields that cannot be read.

    Args:
      cls: A dataclass; each of its own fields has a default.
      flat: The flat form from `flatten`, perhaps of another version.
      common: Fields that are not part of it.

    Returns:
      The arguments, including ``extra`` for data without a field.
    """
    known: dict[str, Any] = {}
    left = dict(flat)
    for field, name, read in _own(cls, common):
        value = left.pop(name, None)
        if value is not None:
            with contextlib.suppress(*_UNREADABLE):
                known[field.name] = read(value)
    return {**known, "extra": left}


_Own = tuple[dataclasses.Field[Any], str, Callable[[Any], Any]]


_known: dict[object, tuple[_Own, ...]] = {}


def _own(cls: Any, common: frozenset[str]) -> tuple[_Own, ...]:
    """Returns a class's own fields, their names in the flat form, and their readers."""
    if cls not in _known:
        types = typing.get_type_hints(cls)
        _known[cls] = tuple(
            (field, str(field.metadata.get("wire", field.name)), _READERS[str(types[field.name])])
            for field in dataclasses.fields(cls)
            if field.name not in common
        )
    return _known[cls]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int | float) or value != int(value):
        raise TypeError(value)
    return int(value)


def _number(value: Any) -> float:
    if value in _NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(value.split("\n")) if value else ()


def _wholes(value: Any) -> tuple[int, ...]:
    return tuple(map(int, value.split(","))) if value else ()


def _object(value: Any) -> Mapping[str, Any]:
    read = json.loads(value)
    if not isinstance(read, dict):
        raise TypeError(value)
    return read


def _counts(value: Any) -> Mapping[str, int]:
    return {n: int(v) for n, v in _object(value).items() if isinstance(v, int | float)}


_TYPES: Mapping[Callable[[Any], Any], tuple[Any, ...]] = {
    _text: (str, str | None),
    _whole: (int, int | None),
    _number: (float, float | None),
    _flag: (bool, bool | None),
    _texts: (tuple[str, ...],),
    _wholes: (tuple[int, ...],),
    _counts: (Mapping[str, int],),
    _object: (Mapping[str, Any],),
}
#: Readers by the type's text; a field of any other type is an error.
_READERS = {str(cls): read for read, classes in _TYPES.items() for cls in classes}
