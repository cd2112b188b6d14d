"""Flags by which a test tells a stand-in's proxy how to behave.

They look like flags of XLA, so that a test may pass them with `proxy_options=` of connect(); images
do not know them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from shared_pathways_service.testing.google_images import MEMORY_WISH, PLACEMENT_WISH

__all__ = ["Wishes", "split"]

_MEMORY_FLAG: Final = "--device_memory_limit_bytes="


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a test wants of a proxy.

    Attributes:
      placement_s: Seconds before the resource manager places its slices.
      flags: Flags of this project's proxy.
    """

    placement_s: float = 0.0
    flags: tuple[str, ...] = ()


def split(argv: Sequence[str]) -> tuple[Wishes, list[str]]:
    """Returns the wishes among the flags, and the other flags."""
    wishes, others = Wishes(), []
    for word in argv:
        name, _, value = word.partition("=")
        if name == MEMORY_WISH:
            wishes = dataclasses.replace(wishes, flags=(f"{_MEMORY_FLAG}{int(value)}",))
        elif name == PLACEMENT_WISH:
            wishes = dataclasses.replace(wishes, placement_s=float(value))
        else:
            others.append(word)
    return wishes, others
