"""Strict mode: refuses programs that Google's proxies refuse, so that others run there as well."""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "is_wanted"]

VARIABLE = "SPS_STRICT"
_VALUES = {"": False, "0": False, "1": True}


def is_wanted() -> bool:
    """Whether the environment requests strict mode; raises ValueError if it is unclear."""
    value = os.environ.get(VARIABLE, "")
    if value not in _VALUES:
        raise ValueError(f"{VARIABLE}={value!r} is not valid: expected 1 for strict mode, or 0")
    return _VALUES[value]
