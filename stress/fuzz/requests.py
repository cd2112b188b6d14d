"""The requests that `stress.fuzz` makes: valid, half-valid, and with changed bytes."""

from __future__ import annotations

from hypothesis import strategies as st

from stress.fuzz import (  # noqa: F401 - each adds its requests
    array_requests,
    buffer_requests,
    handle_requests,
    program_requests,
)
from stress.fuzz.conversation import REQUESTS

__all__ = ["steps"]

_small = st.integers(0, 15)
_picks = st.lists(_small, max_size=4)
steps = st.lists(
    st.tuples(st.sampled_from(sorted(REQUESTS)), _small, _small, _picks), min_size=1, max_size=25
)
