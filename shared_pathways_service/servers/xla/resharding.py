"""Cuts the pieces of an array in one place out of its pieces in another, in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Bounds", "Fragment", "bounds_of", "fragments", "recut"]

Index = tuple[slice, ...]
#: The start of each axis, and the first index behind it.
Bounds = tuple[tuple[int, int], ...]


class Fragment(NamedTuple):
    """A part of a piece, which is a part of another one.

    Attributes:
      held: The index of the other piece.
      source: The part of the other piece.
      target: The part of the piece.
    """

    held: int
    source: Bounds
    target: Bounds


def fragments(held: Mapping[Bounds, int], wanted: Bounds) -> tuple[Fragment, ...]:
    """Returns the parts of a piece of an array among pieces that make up the whole.

    Args:
      held: The index of each of these pieces, by its bounds in the array.
      wanted: The bounds of the piece.
    """
    found = []
    for bounds, index in held.items():
        common = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, bounds, strict=True)
        )
        if common == wanted:
            return (Fragment(index, _within(common, bounds), _within(common, wanted)),)
        if all(begin < end for begin, end in common):
            found.append(Fragment(index, _within(common, bounds), _within(common, wanted)))
    return tuple(found)


def recut(
    shape: tuple[int, ...],
    have: Sequence[Index],
    parts: Sequence[np.ndarray],
    want: Sequence[Index],
) -> list[np.ndarray]:
    """Returns the wanted parts of an array; equal ones are the same object, none may be changed.

    Args:
      shape: The array's.
      have: The part of the array that each of `parts` is.
      parts: Pieces that together make up the whole.
      want: The parts to return.
    """
    # (Replicas are equal: any will do.)
    held = {bounds_of(index, shape): i for i, index in enumerate(have)}
    wanted = [bounds_of(index, shape) for index in want]
    cut = {bounds: _cut(bounds, held, parts) for bounds in wanted}
    return [cut[bounds] for bounds in wanted]


def bounds_of(index: Index, shape: tuple[int, ...]) -> Bounds:
    """Returns the bounds of a part of an array of this shape."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _cut(wanted: Bounds, held: dict[Bounds, int], parts: Sequence[np.ndarray]) -> np.ndarray:
    found = fragments(held, wanted)
    if len(found) == 1:
        return parts[found[0].held][_index(found[0].source)]
    made = np.empty([end - begin for begin, end in wanted], parts[0].dtype)
    for fragment in found:
        made[_index(fragment.target)] = parts[fragment.held][_index(fragment.source)]
    return made


def _within(inner: Bounds, outer: Bounds) -> Bounds:
    return tuple((a - o, b - o) for (a, b), (o, _) in zip(inner, outer, strict=True))


def _index(bounds: Bounds) -> Index:
    return tuple(slice(begin, end) for begin, end in bounds)
