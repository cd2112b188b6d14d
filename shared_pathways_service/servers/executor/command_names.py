"""The clients, arrays, programs and runners that a proxy's commands make and use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Name", "made_by", "used_by"]

#: A field of `Free`, and a number.
Name = tuple[str, int]


def made_by(kind: str, body: Any, client: int) -> Iterable[Name]:
    """Returns the names of what a command makes."""
    if kind == "open":
        return (("clients", client),)
    if kind in {"compile", "make_python"}:
        return (("programs", body.program),)
    if kind == "make_runner":
        return (("runners", body.runner),)
    if kind in {"put", "join", "adopt", "copy", "reinterpret", "reshard", "gather"}:
        return _arrays((body.make.array if kind == "reshard" else body.array,))
    several = {"split": "parts", "run": "results", "call_python": "results"}.get(kind)
    return _arrays(getattr(body, several) if several else ())


def used_by(kind: str, body: Any, client: int) -> Iterable[Name]:
    """Returns the names of what a command uses, its client first."""
    if kind in {"", "meet", "open", "profile"}:
        return
    yield ("clients", client)
    if kind in {"join", "adopt", "copy", "reinterpret"}:
        yield from _arrays(body.parts)
    elif kind == "reshard":
        yield ("clients", body.held_client)
        yield from _arrays(body.make.parts)
    elif kind == "offer":
        yield from _arrays(part.array for part in body.parts)
    elif kind == "gather":
        parts = (part for piece in body.pieces for part in piece.parts)
        yield from _arrays(part.here.array for part in parts if part.HasField("here"))
    elif kind in {"fetch", "split"}:
        yield from _arrays((body.array,))
    elif kind in {"describe", "make_runner", "call_python"}:
        yield ("programs", body.program)
        if kind == "call_python":
            yield from _arrays(body.arguments)
    elif kind == "run":
        yield ("runners", body.runner)
        yield from _arrays(body.arguments)


def _arrays(numbers: Iterable[int]) -> Iterable[Name]:
    return [("arrays", number) for number in numbers]
