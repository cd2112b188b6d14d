"""Writes the page of errors: each class with its exit code, cause, fix and messages."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service import errors
from shared_pathways_service.cli.errors import exit_code
from shared_pathways_service.errors import SharedPathwaysError
from tests.docs import docstrings
from tests.docs.markdown import code, page, table
from tests.docs.raised import Raised, all_raised

__all__ = ["classes", "text"]

_FACTS = Path(__file__).parent / "errors.toml"
_PACKAGE = "shared_pathways_service"
#: Modules with further public errors.
_OTHERS = ("elastic", "testing.testbed")
#: The speaker of a message, by the start of its module's path; the first match applies.
_SPEAKERS = (
    ("cli/", "`sps`"),
    ("serve.py", "`sps`"),
    ("operations/", "`sps`"),
    ("web/", "`sps ui`"),
    ("elastic/", "elastic training"),
    ("manifests/pathways_job", "`sps render`"),
    ("manifests/jobset_parts", "`sps render`"),
    ("manifests/machine_types", "`sps render`"),
    ("manifests/pod_parts", "`sps render`"),
    ("manifests/fields", "`sps render`"),
    ("manifests/", "in a cluster"),
    ("cluster_state/", "in a cluster"),
    ("homes/kubernetes", "in a cluster"),
    ("kube/", "in a cluster"),
    ("tunnel/", "in a cluster"),
    ("submission", "submit()"),
    ("api/job_requests", "submit()"),
    ("servers/supervisor/", "the embedded service"),
    ("runtime/embedded/", "the embedded service"),
    ("flags/", "a server"),
    ("homes/embedded", "the embedded service"),
    ("servers/", "a server"),
    ("testing/", "tests"),
    ("", "connect()"),
)

_HEAD = """\
# Errors

This page lists every error that this package raises on purpose, with its cause and its fix. Each
has a `message` (what happened, and where), a `hint` (what to do next) and fields, so that a program
need not parse the text. An error of a library is translated once, where it enters, and is kept as
`__cause__`.

`sps` prints `error: MESSAGE hint: HINT` on standard error, and exits with the code in the table.
`sps run` exits with 125 for each of them, as its other codes are the program's.

[Words](words.md) explains the words for states, and
[Sharing a service](../sharing.md#when-a-slice-dies) JAX's own errors, such as `DATA_LOSS`.

In the messages, upper case and `…` stand for values that are known only when the error is raised.

```text
{tree}
```

{codes}"""


def classes() -> dict[str, type[Exception]]:
    """Returns every public error by name, in the order of the page."""
    found: dict[str, type[Exception]] = {}
    for base in _below(SharedPathwaysError):
        found[base.__name__] = base
    for package in _OTHERS:
        module = importlib.import_module(f"{_PACKAGE}.{package}")
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            if isinstance(thing, type) and issubclass(thing, Exception):
                found[name] = thing
    return found


def text() -> str:
    """Returns the page.

    Raises:
      KeyError: `errors.toml` has no entry for an error, or an entry without an error.
    """
    facts: dict[str, Any] = tomllib.loads(_FACTS.read_text())
    known = classes()
    if facts.keys() != known.keys():
        raise KeyError(f"errors.toml: {sorted(facts.keys() ^ known.keys())}")
    made: dict[str, list[Raised]] = {name: [] for name in known}
    for raised in all_raised(frozenset(known)):
        made[raised.error].append(raised)
    codes = table(
        ("error", "exit code", "in one sentence"),
        [
            (f"[`{name}`](#{name.lower()})", _code(cls), docstrings.summary(cls))
            for name, cls in known.items()
        ],
    )
    parts = [_HEAD.format(tree=_tree(), codes=codes)]
    parts += [_section(name, cls, facts[name], made[name]) for name, cls in known.items()]
    return page(parts)


def _below(cls: type[SharedPathwaysError]) -> Iterator[type[SharedPathwaysError]]:
    yield cls
    for name in errors.__all__:
        thing = getattr(errors, name)
        if isinstance(thing, type) and thing.__bases__[0] is cls:
            yield from _below(thing)


def _tree() -> str:
    lines = (errors.__doc__ or "").splitlines()
    drawn = [line.removeprefix("    ") for line in lines if line.startswith("    ")]
    return "\n".join(drawn)


def _code(cls: type[Exception]) -> str:
    return str(exit_code(cls.__new__(cls))) if issubclass(cls, SharedPathwaysError) else ""


def _section(
    name: str, cls: type[Exception], facts: Mapping[str, str], made: Sequence[Raised]
) -> str:
    bases = ", ".join(code(base.__name__) for base in cls.__bases__ if base is not Exception)
    fields = docstrings.attributes(cls)
    rows = _rows(name, made)
    parts = [
        f"## {name}",
        docstrings.summary(cls),
        f"Is also: {bases}" if bases else "",
        f"Fields: {_fields(fields)}" if fields else "",
        f"**Cause.** {facts['cause'].strip()}",
        f"**Fix.** {facts['fix'].strip()}",
        f"**Messages** ({len(rows)}):" if rows else "",
        _table(name, rows),
    ]
    return page(parts)


def _fields(fields: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"`{name}`: {what.rstrip('.')}" for name, what in fields)


def _table(name: str, rows: Sequence[Sequence[str]]) -> str:
    if name == "InvalidRequestError":
        return table(("source", "field", "expected", "message and hint"), rows)
    return table(("source", "message", "hint"), rows)


def _rows(name: str, made: Sequence[Raised]) -> list[tuple[str, ...]]:
    rows: set[tuple[str, ...]] = set()
    for raised in made:
        who = next(speaker for start, speaker in _SPEAKERS if raised.path.startswith(start))
        message, hint = raised.text("message"), raised.text("hint")
        if name == "InvalidRequestError":
            both = "; ".join(filter(None, (message, hint)))
            field = raised.text("field").replace("*or*", "or")
            rows.add((who, code(field), raised.text("expected"), both))
        else:
            rows.add((who, message, hint))
    return sorted(rows)
