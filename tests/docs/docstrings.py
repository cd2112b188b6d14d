"""Docstrings of the Google form, read by griffe."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from griffe import Docstring, DocstringSectionKind

__all__ = ["attributes", "markdown", "summary"]

_TITLES = {
    DocstringSectionKind.parameters: "Arguments",
    DocstringSectionKind.attributes: "Attributes",
}


def _sections(thing: object) -> list[Any]:
    return Docstring(inspect.getdoc(thing) or "").parse("google", warnings=False)


def summary(thing: object) -> str:
    """Returns the first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def attributes(thing: object) -> list[tuple[str, str]]:
    """Returns the attributes that a class's docstring describes, each in one line."""
    return [
        (item.name, " ".join(item.description.split()))
        for section in _sections(thing)
        if section.kind is DocstringSectionKind.attributes
        for item in section.value
    ]


def markdown(thing: object) -> str:
    """Returns a docstring as Markdown: its text, and its sections as lists."""
    return "\n\n".join(_parts(thing))


def _parts(thing: object) -> Iterator[str]:
    for section in _sections(thing):
        if section.kind is DocstringSectionKind.text:
            yield section.value.strip()
        elif section.kind in _TITLES:
            items = [f"- `{item.name}`: {_line(item.description)}" for item in section.value]
            yield "\n".join([f"{_TITLES[section.kind]}:", "", *items])
        elif section.kind is DocstringSectionKind.raises:
            items = [f"- `{item.annotation}`: {_line(item.description)}" for item in section.value]
            yield "\n".join(["Raises:", "", *items])
        elif section.kind in (DocstringSectionKind.returns, DocstringSectionKind.yields):
            what = " ".join(_line(item.description) for item in section.value)
            yield f"{section.kind.value.capitalize()}: {what}"
        else:
            raise AssertionError(f"{thing}: what to do with {section.kind}?")


def _line(text: str) -> str:
    return " ".join(text.split())
