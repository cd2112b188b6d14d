"""Grafana's own types of dashboards, and what in a dashboard they do not allow."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.models import dashboard as models

__all__ = ["problems"]

#: Fields of an annotation that are the data source's own, which Grafana's schema leaves open.
_OF_PROMETHEUS = frozenset({"step", "titleFormat", "textFormat", "tagKeys", "useValueForTime"})


def problems(dashboard: dict[str, Any]) -> list[str]:
    """Returns what Grafana would not understand, by its place: unknown fields, wrong values."""
    plugins.register_default_plugins()
    parsed = models.Dashboard.from_json(dashboard)
    return [*_unknown(dashboard, parsed, "$"), *_wrong(parsed, models.Dashboard, "$")]


def _unknown(given: Any, parsed: Any, where: str) -> Iterator[str]:
    """Yields the fields that are not there any more after Grafana's types have read them."""
    plain = parsed.to_json() if hasattr(parsed, "to_json") else parsed
    if isinstance(given, dict) and isinstance(plain, dict):
        open_fields = _OF_PROMETHEUS if isinstance(parsed, models.AnnotationQuery) else frozenset()
        for name, value in given.items():
            if name in plain:
                yield from _unknown(value, plain[name], f"{where}.{name}")
            elif name not in open_fields and value is not None:
                yield f"{where}.{name}: no such field"
    elif isinstance(given, list) and isinstance(plain, list) and len(given) == len(plain):
        for place, (one, other) in enumerate(zip(given, plain, strict=True)):
            yield from _unknown(one, other, f"{where}[{place}]")
    elif given != plain:
        yield f"{where}: {given!r} is read as {plain!r}"


def _wrong(value: Any, hint: Any, where: str) -> Iterator[str]:
    """Yields values that are not of the type that Grafana declares."""
    if hasattr(value, "to_json"):
        for name, its in typing.get_type_hints(type(value)).items():
            yield from _wrong(getattr(value, name), its, f"{where}.{name}")
    elif not _is_of(value, hint):
        yield f"{where}: {value!r} is not {hint}"
    elif isinstance(value, list):
        of = _element(hint)
        for place, one in enumerate(value):
            yield from _wrong(one, of, f"{where}[{place}]")


def _is_of(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_is_of(value, arm) for arm in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in {one.value for one in hint}
    if hint in (Any, object):
        return True
    if hint is float:
        return type(value) in (int, float)
    kind = origin or hint
    return type(value) is kind if isinstance(kind, type) else True


def _element(hint: Any) -> Any:
    """Returns the type of the elements of a list, which may be one of several types."""
    for arm in (hint, *typing.get_args(hint)):
        if typing.get_origin(arm) is list:
            return typing.get_args(arm)[0]
    return Any
