"""Reads hand-written objects field by field, with the field's path in every error."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.validation import check_bool, check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["Fields"]


class Fields:
    """The fields of one object in a manifest; an absent field and ``null`` are the same.

    Args:
      path: The path of the object, e.g. ``spec.workers[0]``; empty: the manifest itself.
      value: The object.
      known: The allowed field names.

    Raises:
      InvalidRequestError: The value is not an object, or a field is unknown.
    """

    def __init__(self, path: str, value: object, known: Collection[str]) -> None:
        self._path = path
        if not isinstance(value, Mapping):
            raise InvalidRequestError(path or "the manifest", value, "an object with fields")
        for name in value:
            if name not in known:
                raise _unknown(self.path(name), name, known)
        self._values: Mapping[str, Any] = value

    def path(self, name: object) -> str:
        """Returns the path of a field."""
        return f"{self._path}.{name}" if self._path else str(name)

    def has(self, name: str) -> bool:
        """Whether a field is present."""
        return self.any(name) is not None

    def any(self, name: str) -> Any:
        """Returns a field unchanged; None if it is absent."""
        return self._values.get(name)

    def object(self, name: str, known: Collection[str]) -> Fields:
        """Returns the fields of a required field."""
        return Fields(self.path(name), self.any(name), known)

    def text(self, name: str, default: str = "") -> str:
        """Returns a non-empty text, or the default if the field is absent."""
        return _text(self.path(name), self.any(name)) if self.has(name) else default

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Returns one of several words; required."""
        value = self.any(name)
        if value not in choices:
            raise InvalidRequestError(self.path(name), value, f"one of {', '.join(choices)}")
        return str(value)

    def number(self, name: str, default: int | None, *, low: int, high: int | None = None) -> int:
        """Returns a whole number; required without a default."""
        value = self.any(name)
        return check_int(self.path(name), default if value is None else value, low=low, high=high)

    def flag(self, name: str) -> bool:
        """Returns True or False; False if the field is absent."""
        value = self.any(name)
        return check_bool(self.path(name), False if value is None else value)

    def items(self, name: str) -> list[tuple[str, Any]]:
        """Returns the items of a list, each with its path; empty if the field is absent."""
        value = self.any(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise InvalidRequestError(self.path(name), value, "a list")
        return [(f"{self.path(name)}[{number}]", item) for number, item in enumerate(value)]

    def texts(self, name: str) -> list[str]:
        """Returns a list of texts."""
        return [_text(path, item) for path, item in self.items(name)]

    def mapping(self, name: str) -> dict[str, str]:
        """Returns texts by name, e.g. labels; empty if the field is absent."""
        value = self.any(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise InvalidRequestError(self.path(name), value, "texts by name")
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, str):
                expected = "a text; numbers and true or false need quotes"
                raise InvalidRequestError(f"{self.path(name)}.{key}", item, expected)
        return dict(value)


def _text(path: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequestError(path, value, "a text")
    return value


def _unknown(path: str, name: object, known: Collection[str]) -> InvalidRequestError:
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return InvalidRequestError(
        path,
        name,
        f"one of {', '.join(names)}",
        message=f"unknown field {path}",
        hint=f"did you mean {near[0]}?" if near else f"known fields: {', '.join(names)}",
    )
