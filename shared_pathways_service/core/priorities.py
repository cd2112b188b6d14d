"""Priorities by name: one source for clusters' PriorityClasses and for what has none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["PRIORITY_CLASSES"]

#: Name: value, higher goes first. The names are those of the public recipe for hotswap on GKE.
PRIORITY_CLASSES: Final[Mapping[str, int]] = MappingProxyType(
    {"low-priority-job": 1_000_000, "high-priority-job": 2_000_000}
)
