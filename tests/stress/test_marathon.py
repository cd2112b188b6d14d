"""The short form of `stress.marathon`."""

from __future__ import annotations

import pytest

from stress.growth import growth
from stress.marathon import Lap, run

#: Large blocks go back to the system as soon as they are freed, and small ones lie in one heap:
#: what is left is what is held, not what the allocator keeps for the next transfer.
_STEADY = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10), "MALLOC_ARENA_MAX": "1"}
#: The allowed growth. The proxy's is usually below 1 MB; leaks of 270 bytes per execution exceed
#: this, as does one piece of a transfer that is kept in some laps. JAX's client starts the more
#: threads the more the machine is loaded, hundreds of them, and ends none: they are most of its
#: growth.
_ALLOWED_MB = {"proxy": 4.0, "client": 64.0}


@pytest.mark.heavy
def test_memory_and_handles_stay_flat() -> None:
    laps: list[Lap] = []
    # It compares the values, and the counters and descriptors after each lap with the first.
    run(20_000, 1.0, 20, laps.append, _STEADY)
    assert laps[-1].executions >= 20_000
    assert laps[-1].received_mb + laps[-1].sent_mb >= 1_000
    assert all(lap.counters == laps[0].counters for lap in laps)
    # The first lap compiles, and begins most threads.
    for side, allowed in _ALLOWED_MB.items():
        grown = growth([getattr(lap, side).resident_mb for lap in laps[1:]], allowed)
        assert grown.flat, (side, grown, [getattr(lap, side) for lap in laps])


def test_growth_is_seen() -> None:
    assert growth([10, 99, 10, 10, 10, 10, 10, 10, 10, 52, 52, 10], 40).flat is False
    assert growth([10, 10, 10, 10, 10, 10, 10, 10, 10, 99, 12, 12], 2).flat is True
    with pytest.raises(ValueError, match="at least 4"):
        growth([1, 2, 3], 0)
