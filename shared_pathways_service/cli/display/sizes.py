"""Formats numbers of bytes for people."""

from __future__ import annotations

__all__ = ["shown_size"]


def shown_size(count: float) -> str:
    """Returns a number of bytes with a unit, e.g. ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
