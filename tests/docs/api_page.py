"""The pages of the public Python interface: what each package's `__all__` names."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from shared_pathways_service.errors import SharedPathwaysError
from tests.docs import docstrings
from tests.docs.markdown import page

__all__ = ["text"]

_PACKAGE = "shared_pathways_service"
#: Where classes are that only serve as bases of public ones.
_PRIVATE_BASES = f"{_PACKAGE}.connection."
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def text(title: str, head: str, modules: dict[str, str]) -> str:
    """Returns a page.

    Args:
      title: Its heading.
      head: What stands below it.
      modules: Each module, and what stands below its own heading.
    """
    parts = [f"# {title}\n\n{head}"]
    for module, about in modules.items():
        parts.append(f"## {module}\n\n{about}".rstrip())
        loaded = importlib.import_module(module)
        for name in sorted(loaded.__all__, key=str.lower):
            thing = getattr(loaded, name)
            home = getattr(thing, "__module__", "")
            if inspect.ismodule(thing) or isinstance(thing, str) or _is_told_elsewhere(thing):
                parts.append(_short(name, thing))
            elif home:
                parts += _section(name, thing)
    return page(parts)


def _is_told_elsewhere(thing: object) -> bool:
    """Whether it is an error, which has a page of its own."""
    return inspect.isclass(thing) and issubclass(thing, SharedPathwaysError)


def _short(name: str, thing: object) -> str:
    if inspect.ismodule(thing):
        return f"### {name}\n\nThe module [{thing.__name__}](#{_slug(thing.__name__)})."
    if isinstance(thing, str):
        told = "The version of this package." if name == "__version__" else f"`{thing!r}`"
        return f"### {name}\n\n{told}"
    return f"### {name}\n\n{docstrings.summary(thing)} See [errors](errors.md#{_slug(name)})."


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading).lower()


def _section(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    if not callable(thing) or get_origin(thing):
        yield f"Type: `{_name(thing)}`"
        return
    if not inspect.isclass(thing):
        yield _signature(name, thing)
        yield docstrings.markdown(thing)
        return
    yield _bases(thing)
    if not issubclass(thing, Exception | enum.Enum) and not getattr(thing, "_is_protocol", False):
        yield _signature(name, thing)
    if not dataclasses.is_dataclass(thing) or _has_own_docstring(name, thing):
        yield docstrings.markdown(thing)
    for member, value in _members(thing):
        yield f"#### {name}.{member}"
        if isinstance(value, property):
            returned = inspect.signature(value.fget).return_annotation if value.fget else ""
            yield f"Property: `{returned}`"
            yield docstrings.markdown(value)
        else:
            yield _signature(member, value, bound=True)
            yield docstrings.markdown(value)


def _bases(thing: type) -> str:
    bases = [
        base.__name__
        for base in thing.__bases__
        if base not in (object, Exception) and not base.__module__.startswith(_PRIVATE_BASES)
    ]
    kind = "Dataclass" if dataclasses.is_dataclass(thing) else "Class"
    if issubclass(thing, Exception):
        kind = "Exception"
    return f"{kind}." if not bases else f"{kind}, of {', '.join(f'`{b}`' for b in bases)}."


def _has_own_docstring(name: str, thing: type) -> bool:
    return not (thing.__doc__ or "").startswith(f"{name}(")


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    fields = (
        {field.name for field in dataclasses.fields(thing)}
        if dataclasses.is_dataclass(thing)
        else set()
    )
    for member, found in _own(thing).items():
        if member.startswith("_") or member in fields:
            continue
        value = getattr(found, "__func__", found)
        described = isinstance(value, property) or inspect.isroutine(value)
        if described and inspect.getdoc(value):
            yield member, value


def _own(thing: type) -> dict[str, Any]:
    """Returns what a class defines, and what it has from bases that `connection` keeps private."""
    bases = [base for base in thing.__mro__[1:] if base.__module__.startswith(_PRIVATE_BASES)]
    inherited = {name: value for base in bases for name, value in vars(base).items()}
    return {**vars(thing), **{n: v for n, v in inherited.items() if n not in vars(thing)}}


def _signature(name: str, thing: Any, *, bound: bool = False) -> str:
    signature = inspect.signature(thing)
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    returned = signature.return_annotation
    has_none = returned is inspect.Signature.empty or inspect.isclass(thing)
    arrow = "" if has_none else f" -> {_name(returned)}"
    shown = list(_shown(parameters))
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) > 90:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + f"){arrow}"
    return f"```text\n{line}\n```"


_PREFIXES: Mapping[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def _shown(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        prefix = _PREFIXES.get(parameter.kind, "")
        starred = starred or prefix == "*"
        annotation = parameter.annotation
        told = "" if annotation is parameter.empty else f": {_name(annotation)}"
        if parameter.default is parameter.empty:
            yield f"{prefix}{parameter.name}{told}"
        else:
            yield f"{prefix}{parameter.name}{told} = {_default(parameter.default)}"


def _default(value: object) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    if type(value).__repr__ is object.__repr__ or " at 0x" in repr(value):
        return "..."
    return "..." if repr(value).startswith("<") else repr(value)


def _name(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
