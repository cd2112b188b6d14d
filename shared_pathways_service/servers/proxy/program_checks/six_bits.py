"""Checks programs with floats of six bits: XLA computes with them hardly at all.

XLA for CPUs (of jaxlib 0.11 and 0.12) ends its process where it needs a constant of such a type:
one of the program, one that it folds (a converted constant, `x - x`), or one that it adds (an empty
array, padding, collectives). It also does so at a sort, a sum or a concatenation, and fails to
compile most other operations. JAX makes arrays by programs that only convert and move their
arguments: those are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from shared_pathways_service.servers.devices.dtypes import SIX_BIT_ELEMENTS

__all__ = ["SixBits"]

_CONVERT = "stablehlo.convert"
_MOVING = frozenset(
    {
        *("builtin.module", "func.func", "func.call", "func.return", "sdy.mesh", _CONVERT),
        *(f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "slice", "transpose")),
    }
)
_ELEMENT = re.compile("|".join(SIX_BIT_ELEMENTS))
_EMPTY = re.compile(rf"[<x][0?]x(?:[0-9?]+x)*(?:{_ELEMENT.pattern})")


class SixBits:
    """The operations of one program, recorded while the program is walked."""

    def __init__(self) -> None:
        self._others: set[str] = set()
        self._converted: set[Any] = set()

    def add(self, operation: Any) -> None:
        """Records an operation."""
        name = operation.name
        if name not in _MOVING:
            self._others.add(name)
        elif name == _CONVERT:
            self._converted.add(operation.operands[0].type)

    def problem(self, types: Iterable[str], num_devices: int) -> str:
        """Returns why a program of these types must not run; empty if it may."""
        own = [text for text in types if _ELEMENT.search(text)]
        if not own:
            return ""
        what = ""
        if num_devices > 1:
            what = "programs over several devices"
        elif self._others:
            what = f"programs with {min(self._others)}"
        elif any(_ELEMENT.search(str(converted)) for converted in self._converted):
            what = "conversions"
        elif any(_EMPTY.search(text) for text in own):
            what = "programs with empty arrays"
        return what and _refusal(what, own[0])


def _refusal(what: str, text: str) -> str:
    element = "".join(_ELEMENT.findall(text)[:1])
    link = "of" if what == "conversions" else "and"
    return (
        f"{what} {link} {element} are not supported: XLA crashes, or fails; fetch such arrays "
        "(jax.device_get) and convert them in this process"
    )
