"""Sets the factor of the product's time-outs, as its users can."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

from shared_pathways_service.patience.factor import VARIABLE

__all__ = ["patience"]


@contextlib.contextmanager
def patience(factor: float) -> Iterator[None]:
    """Sets the factor for this process, and for children that it starts meanwhile."""
    with mock.patch.dict(os.environ, {VARIABLE: str(factor)}):
        yield
